"""Of several answers to one prompt, those that the model itself holds for the best.

An answer's worth is the mean log probability of its tokens, so that a long one is not worth less
for its length. All must have ended before any is told. Knows no engines.
"""

from collections.abc import AsyncIterator, Mapping, Sequence

from blockyard.protos import generation_pb2 as pb

__all__ = ["best_answers", "rank_answers"]


async def best_answers(
    chunks: AsyncIterator[pb.GenerateChunk], num_wanted: int, tell_logprobs: bool
) -> AsyncIterator[pb.GenerateChunk]:
    """Chunks of the `num_wanted` best answers, the best first, numbered anew from 0.

    The usage of the best one counts the tokens of those that are not told, for they were made.
    """
    made: dict[int, list[pb.GenerateChunk]] = {}
    async for chunk in chunks:
        made.setdefault(chunk.choice, []).append(chunk)
    order = rank_answers({choice: _logprobs(own) for choice, own in made.items()})
    best, given = order[0], order[:num_wanted]
    made[best][-1].usage.completion_tokens += sum(
        made[choice][-1].usage.completion_tokens for choice in order[num_wanted:]
    )
    prompt = next((c.prompt for own in made.values() for c in own if c.HasField("prompt")), None)
    for rank, choice in enumerate(given):
        for chunk in made[choice]:
            chunk.choice = rank
            if not tell_logprobs:
                del chunk.logprobs[:]
    if prompt is not None:
        made[best][0].prompt.CopyFrom(prompt)
    for choice in given:
        for chunk in made[choice]:
            yield chunk


def rank_answers(logprobs: Mapping[int, Sequence[float]]) -> list[int]:
    """Choices, the best first; of equals the one with the lower number.

    Args:
        logprobs: of each choice's tokens.
    """

    def worth(choice: int) -> float:
        own = logprobs[choice]
        return sum(own) / len(own) if own else float("-inf")

    return sorted(logprobs, key=lambda choice: (-worth(choice), choice))


def _logprobs(chunks: Sequence[pb.GenerateChunk]) -> list[float]:
    return [token.logprob for chunk in chunks for token in chunk.logprobs]
