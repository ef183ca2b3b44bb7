"""O17, O18, O26, O27: stop texts, cut characters, special tokens, callers' mistakes."""

from collections.abc import Sequence
from typing import Any

import pytest

from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.plan import StepPlan, StepResult
from blockyard.workers.config import WorkerConfig
from blockyard.workers.fake import WitnessWorker

PROMPT = [65] * 8
WAYS = ("grpc-stream", "grpc-unary", "http-stream", "http-whole")


class ScriptWorker(WitnessWorker):
    """A witness that says what it is told to, one token a step, after prompts of one length."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(WorkerConfig("", 256, num_blocks=64), 259)
        self._script = script

    def execute(self, plan: StepPlan) -> StepResult:
        super().execute(plan)
        ends = [s + c for s, c, w in zip(plan.starts, plan.counts, plan.samples, strict=True) if w]
        said = tuple(self._script[end - len(PROMPT)] for end in ends)
        return StepResult(plan.step, said)


async def _script(make_rig: Any, text: bytes, tokenizer: Any) -> Any:
    by_byte = {tokenizer.spell(token): token for token in range(256)}
    said = [by_byte[bytes([byte])] for byte in text]
    return await make_rig(executor=ScriptWorker([*said, 258]))


@pytest.mark.parametrize(
    ("text", "stops", "told", "reason"),
    [
        ("abcdefghij", ["def"], "abc", "stop"),
        ("abcdefghij", ["efghijk"], "abcdefghij", "stop"),
        ("abcdefghij", ["j"], "abcdefghi", "stop"),
        ("abcdefghij", ["cd", "de"], "ab", "stop"),
        ("ab\N{GRINNING FACE}cd", ["\N{GRINNING FACE}"], "ab", "stop"),
        ("abcdefghij", [], "abcdefghij", "stop"),
    ],
)
async def test_o17_stop_texts_over_several_tokens(
    make_rig: Any, tiny_tokenizer: Any, text: str, stops: list[str], told: str, reason: str
) -> None:
    rig = await _script(make_rig, text.encode(), tiny_tokenizer)
    for way in WAYS:
        answer = await rig.ask(way, PROMPT, stop=stops, max_tokens=20)
        assert (answer.texts, answer.reasons) == ([told], [reason]), way
        if told != text:
            kept = await rig.ask(way, PROMPT, stop=stops, max_tokens=20, include_stop=True)
            assert kept.texts[0].startswith(told)
            assert kept.texts[0].endswith(tuple(stops))


async def test_o17_what_was_held_is_told_when_the_answer_ends_in_the_middle(
    make_rig: Any, tiny_tokenizer: Any
) -> None:
    rig = await _script(make_rig, b"abcdefghij", tiny_tokenizer)
    for way in WAYS:
        answer = await rig.ask(way, PROMPT, stop=["efghij"], max_tokens=7)
        assert (answer.texts, answer.reasons) == (["abcdefg"], ["length"]), way


@pytest.mark.parametrize("cut", range(1, 17))
async def test_o18_characters_are_never_cut(make_rig: Any, tiny_tokenizer: Any, cut: int) -> None:
    said = "\N{GRINNING FACE}\uac00e\u0301".encode() + b"\xffok"
    rig = await _script(make_rig, said, tiny_tokenizer)
    for way in WAYS:
        answer = await rig.ask(way, PROMPT, max_tokens=cut)
        assert answer.texts == [said[:cut].decode(errors="replace")], way


async def test_o18_a_stream_sends_no_replacement_before_its_time(
    make_rig: Any, tiny_tokenizer: Any
) -> None:
    rig = await _script(make_rig, "\N{GRINNING FACE}\uac00".encode(), tiny_tokenizer)
    request = pb.GenerateRequest(tokens=pb.TokenIds(ids=PROMPT))
    texts = [chunk.text async for chunk in rig.client.stream(request)]
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts)
    assert "".join(texts) == "\N{GRINNING FACE}\uac00"


async def test_o26_one_beginning_and_no_injected_control_tokens(rig: Any) -> None:
    content = "hello <|im_end|> world"
    chat = {"messages": [{"role": "user", "content": content}]}
    counted = (await rig.web.post("/tokenize", json=chat)).json()
    start, end = 257, 258
    assert counted["tokens"].count(start) == 2  # the user's turn and the assistant's
    assert counted["tokens"].count(end) == 1
    message = pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=content)])
    request = pb.GenerateRequest(
        chat=message, sampling=pb.SamplingParameters(max_tokens=1, echo=True)
    )
    by_grpc = await rig.client.generate(request)
    assert list(by_grpc.prompt.token_ids) == counted["tokens"]
    by_http = await rig.web.post("/v1/chat/completions", json={**chat, "max_tokens": 1})
    assert by_http.json()["usage"]["prompt_tokens"] == by_grpc.usage.prompt_tokens
    plain = (await rig.web.post("/tokenize", json={"prompt": "hello"})).json()
    told = await rig.ask("grpc-unary", "hello", max_tokens=1, echo=True)
    assert told.prompt == plain["tokens"]
    assert start not in plain["tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": 7, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x" * 1_000_000}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "model": "other"}, "model"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": "ten"}, "max_tokens"),
    ],
)
async def test_o27_a_callers_mistake_stays_the_callers(
    rig: Any, body: dict[str, Any], param: str
) -> None:
    for stream in (False, True):
        answer = await rig.web.post("/v1/chat/completions", json={**body, "stream": stream})
        assert answer.status_code == (404 if param == "model" else 400)
        assert answer.json()["error"]["param"] == param
    assert (await rig.ask("http-whole", "fine", max_tokens=1)).completion_tokens == 1
