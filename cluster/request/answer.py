"""One answer as it grows: from the engine's updates to chunks for the client.

Counts tokens, keeps time, ends the answer at a stop string. Knows neither engine nor transport.
Units: tokens, seconds.
"""

from collections.abc import Callable

from blockyard.cluster.request.detokenizer import Detokenizer
from blockyard.cluster.request.token_decoder import TokenDecoder
from blockyard.cluster.request.validation import GenerationOptions
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestUpdate, Timings

__all__ = ["Answer"]

_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


class Answer:
    """What a client has been told, and what is to be told next."""

    def __init__(
        self,
        options: GenerationOptions,
        num_prompt: int,
        decoder: TokenDecoder,
        arrived_at: float,
        clock: Callable[[], float],
        choice: int = 0,
    ) -> None:
        self._choice = choice
        self._options = options
        self._num_prompt = num_prompt
        self._detokenizer = Detokenizer(decoder, options.stops)
        self._arrived_at = arrived_at
        self._clock = clock
        self._first_token_at: float | None = None
        self._num_completion = 0
        self._cached_tokens = 0
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether the last chunk has been made."""
        return self._finished

    def take(self, update: RequestUpdate) -> pb.GenerateChunk:
        """The chunk that an update gives; the last one when it or a stop string ends the answer."""
        chunk = pb.GenerateChunk(
            request_id=self._options.request_id, model=self._options.model, choice=self._choice
        )
        self._cached_tokens = max(self._cached_tokens, update.cached_tokens)
        if update.token_ids and self._first_token_at is None:
            self._first_token_at = self._clock()
        text: list[str] = []
        stopped = False
        for token_id in update.token_ids:
            piece = self._detokenizer.push(token_id)
            chunk.token_ids.append(token_id)
            text.append(piece.text)
            stopped = piece.stopped
            if stopped:
                break  # what the engine made past the stop string was never asked for
        self._num_completion += len(chunk.token_ids)
        if update.finish_reason is not None and not stopped:
            piece = self._detokenizer.flush()
            text.append(piece.text)
            stopped = piece.stopped
        chunk.text = "".join(text)
        if stopped:
            self._finish(chunk, FinishReason.STOP, update.timings)
        elif update.finish_reason is not None:
            self._finish(chunk, update.finish_reason, update.timings)
        return chunk

    def _finish(
        self, chunk: pb.GenerateChunk, reason: FinishReason, engine: Timings | None
    ) -> None:
        self._finished = True
        now = self._clock()
        chunk.finish_reason = _FINISH_REASONS[reason]
        chunk.usage.prompt_tokens = self._num_prompt
        chunk.usage.cached_tokens = self._cached_tokens
        chunk.usage.completion_tokens = self._num_completion
        timings = chunk.timings
        timings.first_token_seconds = (self._first_token_at or now) - self._arrived_at
        timings.total_seconds = now - self._arrived_at
        if engine is not None:
            timings.queue_seconds = engine.queue_seconds
            timings.prefill_seconds = engine.prefill_seconds
            timings.decode_seconds = engine.decode_seconds
            timings.preemptions = engine.preemptions
