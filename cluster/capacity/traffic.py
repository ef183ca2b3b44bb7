"""What a replay is fed with: requests of a trace, or made up ones. Units: tokens, blocks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from blockyard.cluster.capacity.trace_reader import TraceRequest
from blockyard.scheduler.simulated.arrivals import Arrival
from blockyard.scheduler.simulated.synthetic import SyntheticTraffic

__all__ = ["Traffic", "recorded_traffic", "synthetic_traffic"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that can be gone through again for each allocator.

    Attributes:
        num_requests: how many there are.
        longest_tokens: prompt and answer of the longest that may come.
        arrivals: begins anew with each call; in order of time.
        num_blocks: blocks of a given size that hold all of them at once.
    """

    num_requests: int
    longest_tokens: int
    arrivals: Callable[[], Iterator[Arrival]]
    num_blocks: Callable[[int], int]


def recorded_traffic(requests: Sequence[TraceRequest]) -> Traffic:
    """The requests of a trace, in order of time whatever their order there."""
    ordered = sorted(requests, key=lambda request: request.arrival_seconds)

    def arrivals() -> Iterator[Arrival]:
        for number, request in enumerate(ordered):
            yield Arrival(
                number,
                request.arrival_seconds,
                request.prompt_tokens,
                request.output_tokens,
                request.prefix_ids,
                request.piece_tokens,
            )

    return Traffic(
        num_requests=len(ordered),
        longest_tokens=max((request.total_tokens for request in ordered), default=1),
        arrivals=arrivals,
        num_blocks=lambda size: sum(-(-request.total_tokens // size) for request in ordered),
    )


def synthetic_traffic(traffic: SyntheticTraffic) -> Traffic:
    """Requests made up while they are needed, so that any number fits into memory."""
    return Traffic(
        num_requests=traffic.requests,
        longest_tokens=traffic.most_tokens,
        arrivals=traffic.arrivals,
        num_blocks=lambda size: sum(
            -(-(arrival.prompt_tokens + arrival.output_tokens) // size)
            for arrival in traffic.arrivals()
        ),
    )
