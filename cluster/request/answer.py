"""One answer as it grows: from the engine's updates to chunks for the client.

Counts tokens, keeps time, ends the answer at a stop string. Knows neither engine nor transport.
Units: tokens, seconds, characters.
"""

from collections.abc import Callable

from blockyard.cluster.request.detokenizer import Detokenizer, TextPiece
from blockyard.cluster.request.logprob_messages import TokenSpeller
from blockyard.cluster.request.token_decoder import TokenDecoder
from blockyard.cluster.request.validation import GenerationOptions
from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.request import FinishReason, RequestUpdate, Timings
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["STARTED_WEIGHTS", "Answer"]

STARTED_WEIGHTS = "started"
"""What answers call the weights that the server was started with."""

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
        prompt_token_ids: tuple[int, ...],
        decoder: TokenDecoder,
        speller: TokenSpeller,
        arrived_at: float,
        clock: Callable[[], float],
        choice: int = 0,
    ) -> None:
        self._choice = choice
        self._options = options
        self._prompt_token_ids = prompt_token_ids
        self._detokenizer = Detokenizer(decoder, options.stops, options.include_stop)
        self._speech = options.speech.begin()
        self._speller = speller
        self._arrived_at = arrived_at
        self._clock = clock
        self._first_token_at: float | None = None
        self._num_completion = 0
        self._cached_tokens = 0
        self._weights: list[str] = []
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._begun = False
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether the last chunk has been made."""
        return self._finished

    def take(self, update: RequestUpdate) -> pb.GenerateChunk:
        """The chunk that an update gives; the last one when it or a stop string ends the answer."""
        chunk = pb.GenerateChunk(
            request_id=self._options.request_id, model=self._options.told_model, choice=self._choice
        )
        if update.token_ids:
            self._tell_weights(chunk, update.weights or ("",))
        self._cached_tokens = max(self._cached_tokens, update.cached_tokens)
        self._prompt_logprobs.extend(update.prompt_logprobs)
        if update.token_ids and self._first_token_at is None:
            self._first_token_at = self._clock()
        text: list[str] = []
        stop: str | None = None
        full = False
        last = len(update.token_ids) - 1
        for index, token_id in enumerate(update.token_ids):
            chunk.token_ids.append(token_id)
            if update.logprobs:
                offset = len(self._options.echo_text) + self._detokenizer.num_decoded
                told = self._speller.message(token_id, update.logprobs[index], offset)
                chunk.logprobs.append(told)
            if index == last and update.finish_reason is FinishReason.STOP:
                piece = self._stop_at(chunk, token_id)
            else:
                piece = self._detokenizer.push(token_id)
            text.append(piece.text)
            full = self._speech is not None and self._part(text, chunk)
            stop = piece.stop
            if stop is not None or full:
                break  # what the engine made past the end was never asked for
        self._num_completion += len(chunk.token_ids)
        if update.finish_reason is not None and stop is None and not full:
            piece = self._detokenizer.flush()
            text.append(piece.text)
            full = self._speech is not None and self._part(text, chunk)
            stop = piece.stop
        chunk.text += "".join(text)
        if full:
            self._finish(chunk, FinishReason.STOP, update.timings)
        elif stop is not None:
            chunk.stop_text = stop
            chunk.ClearField("stop_token_id")
            self._finish(chunk, FinishReason.STOP, update.timings)
        elif update.finish_reason is not None:
            self._finish(chunk, update.finish_reason, update.timings)
        if not self._begun and (chunk.token_ids or self._finished):
            self._begin(chunk)
        return chunk

    def _tell_weights(self, chunk: pb.GenerateChunk, versions: tuple[str, ...]) -> None:
        """Name the weights that tokens of this answer have not been made by before."""
        if not self._weights:
            chunk.adapter_version = self._options.adapter_version
        for version in versions:
            name = version or STARTED_WEIGHTS
            if name not in self._weights:
                self._weights.append(name)
                chunk.weight_versions.append(name)

    def _part(self, text: list[str], chunk: pb.GenerateChunk) -> bool:
        """Move text to where it belongs in the chunk; whether no more may be said."""
        assert self._speech is not None
        self._speech.push("".join(text), chunk)
        text.clear()
        return self._speech.full

    def _stop_at(self, chunk: pb.GenerateChunk, token_id: int) -> TextPiece:
        """The text of the token that ended the answer: none, unless it is to stay."""
        if token_id in self._options.stop_token_ids:
            chunk.stop_token_id = token_id
            if not self._options.include_stop:
                return TextPiece("")
        return self._detokenizer.push(token_id)

    def _begin(self, chunk: pb.GenerateChunk) -> None:
        """What goes before the first token."""
        self._begun = True
        options = self._options
        chunk.text = options.echo_text + chunk.text
        if options.tell_prompt and self._choice == 0:
            chunk.prompt.token_ids.extend(self._prompt_token_ids)
            if options.score_prompt:
                chunk.prompt.logprobs.extend(
                    self._speller.prompt(self._prompt_token_ids, self._prompt_logprobs)
                )

    def _finish(
        self, chunk: pb.GenerateChunk, reason: FinishReason, engine: Timings | None
    ) -> None:
        self._finished = True
        now = self._clock()
        chunk.finish_reason = _FINISH_REASONS[reason]
        if self._speech is not None:
            stopped = reason is FinishReason.STOP
            self._speech.finish(not stopped, chunk)
            if stopped and self._speech.num_calls:
                chunk.finish_reason = pb.FINISH_REASON_TOOL_CALLS
        chunk.usage.prompt_tokens = len(self._prompt_token_ids)
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
