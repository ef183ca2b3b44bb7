"""Log probabilities as messages for clients, with what each token spells."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from blockyard.protos import generation_pb2 as pb
from blockyard.scheduler.sampling import TokenLogprobs

__all__ = ["TokenSpeller"]


class TokenSpeller:
    """Makes the messages; `spell` gives the bytes of one token."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell

    def message(
        self, token_id: int, logprobs: TokenLogprobs | None, text_offset: int = 0
    ) -> pb.TokenLogprobs:
        """One token's; without a log probability where there is none."""
        message = pb.TokenLogprobs(
            token_id=token_id, bytes=self._spell(token_id), text_offset=text_offset
        )
        if logprobs is not None:
            message.logprob = logprobs.logprob
            message.rank = logprobs.rank
            message.top.extend(
                pb.TopLogprob(token_id=top_id, bytes=self._spell(top_id), logprob=logprob)
                for top_id, logprob in zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
            )
        return message

    def prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> Iterator[pb.TokenLogprobs]:
        """One for each token of a prompt; the first has none, the others theirs in order."""
        # Scores end early only when the request did.
        for token_id, entry in zip(token_ids, chain((None,), logprobs), strict=False):
            yield self.message(token_id, entry)
