"""Any server with OpenAI's HTTP interface under load: text or chat completions, streamed.

`ignore_eos` is asked for where an answer must have an exact length; Blockyard, vLLM and SGLang
know it, and what a server does not know it must ignore or refuse.
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from blockyard.cluster.benchmark.load_endpoint import Answer, EndpointError, ServedModel
from blockyard.cluster.benchmark.load_requests import LoadRequest, as_text

__all__ = ["OpenAiEndpoint"]

_MOST_MESSAGE_CHARACTERS = 300
_MOST_LINE_BYTES = 4 * 1024 * 1024


class OpenAiEndpoint:
    """Implements `load_endpoint.Endpoint`; make it inside an event loop.

    Args:
        url: of the server, with or without `/v1`.
        chat: ask for chat completions; else for completions of token ids where there are some.
        api_key: shown with every call; empty: none.
    """

    def __init__(self, url: str, chat: bool, api_key: str = "") -> None:
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._chat = chat
        self._name = ""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            read_bufsize=_MOST_LINE_BYTES,
        )

    async def model(self, name: str) -> ServedModel:
        """See `Endpoint`; requests go to this model from here on."""
        try:
            async with self._session.get(f"{self._base}/models") as answer:
                await _check(answer)
                served = (await answer.json())["data"]
        except (aiohttp.ClientError, ValueError, KeyError, OSError) as error:
            raise EndpointError("UNREACHABLE", f"{self._base}/models: {error}") from None
        found = next((one for one in served if name in ("", one["id"])), None)
        if found is None:
            known = ", ".join(one["id"] for one in served) or "none"
            raise EndpointError("NOT_FOUND", f"no model {name!r} is served; known are {known}")
        self._name = found["id"]
        return ServedModel(found["id"], found.get("max_model_len"))

    async def ask(self, request: LoadRequest, arrived: Callable[[int], None]) -> Answer:
        """See `Endpoint`."""
        text: list[str] = []
        tokens, complete = None, False
        path = "chat/completions" if self._chat else "completions"
        try:
            async with self._session.post(
                f"{self._base}/{path}", json=self._body(request)
            ) as answer:
                await _check(answer)
                async for event in _events(answer):
                    usage = event.get("usage")
                    tokens = usage["completion_tokens"] if usage else tokens
                    for choice in event["choices"]:
                        piece = _piece(choice)
                        if piece:
                            arrived(1)
                            text.append(piece)
                        reason = choice.get("finish_reason")
                        complete = reason == "stop" if reason else complete
        except (aiohttp.ClientError, OSError) as error:
            raise EndpointError("CONNECTION", str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise EndpointError("MALFORMED", f"an event is not as expected: {error!r}") from None
        return Answer("".join(text), tokens, complete)

    async def close(self) -> None:
        """See `Endpoint`."""
        await self._session.close()

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._name,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.schema:
            schema = {"name": "answer", "strict": True, "schema": json.loads(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        else:
            body["ignore_eos"] = True
        if self._chat:
            body["messages"] = [{"role": "user", "content": as_text(request).prompt}]
        else:
            prompt = request.prompt
            body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        return body


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 200:
        said = (await answer.text())[:_MOST_MESSAGE_CHARACTERS]
        raise EndpointError(f"HTTP {answer.status}", said)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The JSON of each server-sent event, up to the last."""
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            said = event["error"]
            kind = said.get("code") or said.get("type") if isinstance(said, dict) else "ERROR"
            raise EndpointError(str(kind), str(said)[:_MOST_MESSAGE_CHARACTERS])
        yield event


def _piece(choice: dict[str, Any]) -> str:
    """New text: of an answer, of its reasoning, or of a completion."""
    delta = choice.get("delta")
    if delta is None:
        return str(choice.get("text") or "")
    return str(delta.get("content") or delta.get("reasoning_content") or "")
