"""What a transport knows of a call, on its way to the engine."""

import itertools
from typing import Any

import pytest

from blockyard.cluster.request.api_error import ApiCode, ApiError
from blockyard.cluster.request.caller import Caller
from blockyard.cluster.request.generation import GenerationService
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RefusalCode, RequestRefused


@pytest.fixture
def service(dispatcher: Any, tokenizers: dict[str, ModelTokenizer]) -> GenerationService:
    ticks = itertools.count()
    return GenerationService(dispatcher, tokenizers, clock=lambda: float(next(ticks)))


def asked(**sampling: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt="hello", request_id="mine", sampling=pb.SamplingParameters(**sampling)
    )


async def test_a_client_subdivides_its_own_tenant_only(
    service: GenerationService, dispatcher: Any
) -> None:
    dispatcher.script = [FinishReason.STOP]
    for caller, own in (
        (Caller(), ""),
        (Caller(), "me"),
        (Caller("corp"), ""),
        (Caller("corp"), "me"),
    ):
        await service.generate(asked(tenant=own), caller)
    specs = [spec for _, spec in dispatcher.submitted]
    assert [spec.tenant for spec in specs] == ["", "/me", "corp", "corp/me"]
    assert {spec.name for spec in specs} == {"mine"}


async def test_the_engine_gets_what_is_left_of_a_deadline(
    service: GenerationService, dispatcher: Any
) -> None:
    dispatcher.script = [FinishReason.STOP]
    await service.generate(asked(), Caller(deadline_seconds=8.0))
    await service.generate(asked(), Caller(deadline_seconds=0.5))
    await service.generate(asked())
    specs = [spec for _, spec in dispatcher.submitted]
    # Each look at the clock of these tests takes a second.
    assert [spec.deadline_seconds for spec in specs] == [7.0, 0.0, None]


@pytest.mark.parametrize(
    ("refusal", "code", "field"),
    [
        ((RefusalCode.INVALID, "no", "deadline_seconds"), ApiCode.DEADLINE_EXCEEDED, ""),
        ((RefusalCode.INVALID, "no", "n"), ApiCode.INVALID_ARGUMENT, "sampling.n"),
        ((RefusalCode.EXISTS, "no", "request_id"), ApiCode.ALREADY_EXISTS, "request_id"),
    ],
)
async def test_refusals_of_deadline_choices_and_name(
    service: GenerationService, dispatcher: Any, refusal: Any, code: ApiCode, field: str
) -> None:
    dispatcher.refusal = RequestRefused(*refusal)
    with pytest.raises(ApiError) as caught:
        await service.generate(asked())
    error = caught.value
    assert (error.code, error.field, error.retry_after_seconds) == (code, field, None)
