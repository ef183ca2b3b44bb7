"""Answers of `POST /v1/responses`: items as they form, the events that tell of them, and the whole.

The whole is what the events add up to, for both are made by one object. Units: tokens, seconds.
"""

from typing import Any

from blockyard.protos import generation_pb2 as pb

__all__ = ["ResponseAnswer"]

_ENDS: dict[int, tuple[str, dict[str, str] | None]] = {
    pb.FINISH_REASON_LENGTH: ("incomplete", {"reason": "max_output_tokens"}),
    pb.FINISH_REASON_ABORT: ("cancelled", None),
}


class ResponseAnswer:
    """One response so far. Each method gives the events that tell what is new."""

    def __init__(self, created: int, echoed: dict[str, Any]) -> None:
        """`created` is in seconds since 1970; `echoed` is repeated from the question."""
        self._created = created
        self._echoed = echoed
        self._head: dict[str, Any] = {}
        self._items: list[dict[str, Any]] = []
        self._open = False
        self._num_events = 0
        self._num_thought = 0
        self._status = "in_progress"
        self._incomplete: dict[str, str] | None = None
        self._usage: dict[str, Any] | None = None

    def add(self, chunk: pb.GenerateChunk) -> list[dict[str, Any]]:
        """Take the next chunk."""
        events = [] if self._head else self._begin(chunk)
        if chunk.reasoning:
            # A chunk in which reasoning ends and text begins counts as reasoning.
            self._num_thought += len(chunk.token_ids)
            events += self._add_text("reasoning", chunk.reasoning)
        if chunk.text:
            events += self._add_text("message", chunk.text)
        for piece in chunk.tool_calls:
            events += self._add_call(piece)
        if chunk.finish_reason:
            events += self._end(chunk)
        return events

    def body(self) -> dict[str, Any]:
        """The response as it stands."""
        return {
            **self._head,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": None,
            "incomplete_details": self._incomplete,
            "output": [dict(item) for item in self._items],
            "previous_response_id": None,
            "parallel_tool_calls": True,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "metadata": {},
            **self._echoed,
            "usage": self._usage,
        }

    def _begin(self, chunk: pb.GenerateChunk) -> list[dict[str, Any]]:
        self._head = {"id": f"resp_{chunk.request_id}", "model": chunk.model}
        return [
            self._event(f"response.{name}", response=self.body())
            for name in ("created", "in_progress")
        ]

    def _add_text(self, kind: str, text: str) -> list[dict[str, Any]]:
        events = self._open_item(kind)
        item = self._items[-1]
        part = item["content"][0]
        part["text"] += text
        name = "output_text" if kind == "message" else "reasoning_text"
        told: dict[str, Any] = {"delta": text, **self._place(item), "content_index": 0}
        if kind == "message":
            told["logprobs"] = []
        return [*events, self._event(f"response.{name}.delta", **told)]

    def _add_call(self, piece: pb.ToolCall) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if piece.id:
            events = self._close_item()
            self._items.append(
                {
                    "id": f"fc_{piece.id.removeprefix('call_')}",
                    "type": "function_call",
                    "status": "in_progress",
                    "call_id": piece.id,
                    "name": piece.name,
                    "arguments": "",
                }
            )
            events += self._opened()
        item = self._items[-1]
        item["arguments"] += piece.arguments
        if piece.arguments:
            name = "response.function_call_arguments.delta"
            events.append(self._event(name, delta=piece.arguments, **self._place(item)))
        return events

    def _open_item(self, kind: str) -> list[dict[str, Any]]:
        """An item of text to add to: the one that is open, if it is of that kind."""
        if self._open and self._items[-1]["type"] == kind:
            return []
        events = self._close_item()
        number = len(self._items)
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        if kind == "message":
            item |= {"id": f"msg_{number}_{self._head['id']}", "role": "assistant"}
            part: dict[str, Any] = {
                "type": "output_text",
                "text": "",
                "annotations": [],
                "logprobs": [],
            }
        else:
            item |= {"id": f"rs_{number}_{self._head['id']}", "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        item["content"] = []
        self._items.append(item)
        events += self._opened()
        item["content"] = [part]
        name = "response.content_part.added"
        events.append(self._event(name, part=dict(part), **self._place(item), content_index=0))
        return events

    def _opened(self) -> list[dict[str, Any]]:
        self._open = True
        item = self._items[-1]
        number = len(self._items) - 1
        return [self._event("response.output_item.added", item=dict(item), output_index=number)]

    def _close_item(self) -> list[dict[str, Any]]:
        if not self._open:
            return []
        self._open = False
        item = self._items[-1]
        place = self._place(item)
        item["status"] = "incomplete" if self._status == "incomplete" else "completed"
        events: list[dict[str, Any]] = []
        if item["type"] == "function_call":
            name = "response.function_call_arguments.done"
            told = {"name": item["name"], "arguments": item["arguments"]}
            events.append(self._event(name, **told, **place))
        else:
            (part,) = item["content"]
            told = {"text": part["text"], **place, "content_index": 0}
            if item["type"] == "message":
                told["logprobs"] = []
            events.append(self._event(f"response.{part['type']}.done", **told))
            name = "response.content_part.done"
            events.append(self._event(name, part=dict(part), **place, content_index=0))
        number = place["output_index"]
        done = self._event("response.output_item.done", item=dict(item), output_index=number)
        return [*events, done]

    def _end(self, chunk: pb.GenerateChunk) -> list[dict[str, Any]]:
        self._status, self._incomplete = _ENDS.get(chunk.finish_reason, ("completed", None))
        events = self._close_item()
        usage = chunk.usage
        self._usage = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_thought},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        name = "failed" if self._status == "cancelled" else self._status
        return [*events, self._event(f"response.{name}", response=self.body())]

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self._items) - 1}

    def _event(self, kind: str, **told: Any) -> dict[str, Any]:
        number = self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **told}
