"""One request's way from the client's message to the client's text, whatever the transport.

Validates, submits through the dispatcher, turns tokens to text, finds stop strings. On every way
out that is not the request's own end (client gone, stop string, failure) the engine is told, so
that the blocks are free within a step. Knows no gRPC. Units: tokens, seconds.
"""

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace

from blockyard.cluster.dispatch import Dispatcher
from blockyard.cluster.request.answer import Answer
from blockyard.cluster.request.api_error import RETRY_AFTER_SECONDS, ApiCode, ApiError, from_refusal
from blockyard.cluster.request.api_keys import KeyRing
from blockyard.cluster.request.beam_fields import searches
from blockyard.cluster.request.best_of import best_answers
from blockyard.cluster.request.caller import ANYBODY, Caller
from blockyard.cluster.request.choices import answer_chunks
from blockyard.cluster.request.logprob_messages import TokenSpeller
from blockyard.cluster.request.observer import ObservedRequest, RequestObserver
from blockyard.cluster.request.sampling_fields import num_wanted
from blockyard.cluster.request.served_model import find_model, find_served
from blockyard.cluster.request.validation import PreparedRequest, client_fields, prepare_request
from blockyard.cluster.request.whole_answer import WholeAnswer
from blockyard.cluster.tokenizer import ModelTokenizer
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import RequestRefused, RequestSpec

__all__ = ["GenerationService", "find_model", "unexpected_error"]

_LOG = logging.getLogger(__name__)


class GenerationService:
    """Serves `Generation` over any dispatcher. Many requests run in it at once."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        tokenizers: Mapping[str, ModelTokenizer],
        clock: Callable[[], float] = time.monotonic,
        keys: KeyRing | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        """`tokenizers` has one entry for each model of the dispatcher; `keys` have limits."""
        self._observer = observer if observer is not None else RequestObserver()
        self._keys = keys if keys is not None else KeyRing()
        self._dispatcher = dispatcher
        self._tokenizers = tokenizers
        self._clock = clock

    async def generate(
        self, request: pb.GenerateRequest, caller: Caller = ANYBODY
    ) -> pb.GenerateResponse:
        """The whole answer.

        Raises:
            ApiError: refused, or failed on the way.
        """
        answer = WholeAnswer()
        async with aclosing(self.stream(request, caller)) as chunks:
            async for chunk in chunks:
                answer.add(chunk)
        return answer.response()

    async def stream(
        self, request: pb.GenerateRequest, caller: Caller = ANYBODY
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        """Every answer in pieces; its last has `finish_reason`. Close it to leave early.

        Raises:
            ApiError: refused, or failed on the way.
        """
        arrived_at = self._clock()
        with (
            self._observer.request(request, caller) as observed,
            self._keys.live(caller.tenant),
        ):
            async with aclosing(self._admitted(request, caller, arrived_at, observed)) as chunks:
                async for chunk in chunks:
                    observed.note(chunk)
                    yield chunk

    async def _admitted(
        self,
        request: pb.GenerateRequest,
        caller: Caller,
        arrived_at: float,
        observed: ObservedRequest,
    ) -> AsyncGenerator[pb.GenerateChunk, None]:
        try:
            prepared = await self._prepare(request)
            model = prepared.options.model
            spec = observed.admitted(self._of_caller(prepared.spec, caller, arrived_at), model)
            tokens = await self._dispatcher.submit(model, spec)
            answers = self._answers(prepared, arrived_at)
            wanted = num_wanted(request.sampling)
            async with aclosing(answer_chunks(tokens, answers)) as chunks:
                if searches(request.sampling):
                    async for chunk in chunks:  # all at the end, the best first
                        if chunk.choice < wanted:
                            yield chunk
                elif wanted < len(answers):
                    tell = request.sampling.HasField("logprobs")
                    async for chunk in best_answers(chunks, wanted, tell):
                        yield chunk
                else:
                    async for chunk in chunks:
                        yield chunk
        except ApiError:
            raise
        except RequestRefused as refusal:
            raise from_refusal(refusal, client_fields(request)) from None
        except Exception as error:
            raise unexpected_error(error, "a generation request") from error

    async def _prepare(self, request: pb.GenerateRequest) -> PreparedRequest:
        served = find_served(self._dispatcher, request.model, "model")
        model = served.model
        tokenizer = self._tokenizers.get(model.name)
        if tokenizer is None:
            raise ApiError(
                ApiCode.UNAVAILABLE,
                "model",
                f"{model.name!r} is still being loaded; try again soon",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        prepared = await prepare_request(request, model, tokenizer)
        if served.adapter is None:
            return prepared
        return PreparedRequest(
            replace(prepared.spec, extras=served.extras),
            replace(prepared.options, adapter=served.name, adapter_version=served.adapter.version),
        )

    def _of_caller(self, spec: RequestSpec, caller: Caller, arrived_at: float) -> RequestSpec:
        """The request with what the transport knows; `spec` names the client's part of a tenant."""
        deadline = caller.deadline_seconds
        if deadline is not None:
            # An engine counts from the moment at which it gets the request.
            deadline = max(0.0, deadline - (self._clock() - arrived_at))
        tenant = caller.tenant_of(spec.tenant)
        return replace(
            spec,
            tenant=tenant,
            deadline_seconds=deadline,
            part_of=caller.part_of,
            first_number=caller.first_number,
        )

    def _answers(self, prepared: PreparedRequest, arrived_at: float) -> list[Answer]:
        """What is to be told of each choice."""
        tokenizer = self._tokenizers[prepared.options.model]
        return [
            Answer(
                prepared.options,
                prepared.spec.prompt_token_ids,
                decoder=tokenizer.decoder(prepared.options.speech.marks),
                speller=TokenSpeller(tokenizer.spell),
                arrived_at=arrived_at,
                clock=self._clock,
                choice=choice,
            )
            for choice in range(prepared.spec.num_choices)
        ]


def unexpected_error(error: BaseException, doing: str) -> ApiError:
    """Log a failure of our own under an id, and give the client that id and nothing else."""
    incident = secrets.token_hex(6)
    _LOG.error("incident %s in %s", incident, doing, exc_info=error)
    return ApiError(
        ApiCode.INTERNAL,
        "",
        f"the server failed; its log tells more under incident {incident}",
        incident=incident,
    )
