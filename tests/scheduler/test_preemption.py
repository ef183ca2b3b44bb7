import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.preemption import choose_victim, yielding_to
from blockyard.scheduler.request import Request, RequestSpec, RequestState
from blockyard.scheduler.sampling import SamplingParams


def request(sequence: int, priority: int = 0, tenant: str = "") -> Request:
    return Request(
        spec=RequestSpec(f"r{sequence}", (1,), SamplingParams(), priority, tenant),
        sequence=sequence,
        max_tokens=1,
        table=BlockTable(4),
        arrived_at=0.0,
    )


def by_urgency(*requests: Request) -> list[Request]:
    return sorted(requests, key=lambda member: member.urgency)


def test_the_victim_is_of_the_lowest_priority_then_the_youngest() -> None:
    running = by_urgency(request(1), request(2), request(3, -1), request(0, -1), request(9, 1))
    victim = choose_victim(running, running[0])
    assert victim is not None and victim.sequence == 3
    victim = choose_victim(running[:-2], running[0])
    assert victim is not None and victim.sequence == 2


def test_the_least_urgent_preempts_nobody() -> None:
    running = by_urgency(request(1), request(2, 1))
    assert choose_victim(running, running[-1]) is None
    assert choose_victim(running[:1], running[0]) is None


@pytest.mark.parametrize(
    ("newcomer", "expected"),
    [
        (request(9, 0), []),
        (request(9, 1), [4]),
        (request(9, 2), [1, 3, 4]),
        (request(9, 3), [0, 1, 3, 4]),
        (request(2, 1), [4]),
    ],
)
def test_only_lower_priorities_yield(newcomer: Request, expected: list[int]) -> None:
    running = by_urgency(request(0, 2), request(1, 1), request(3, 1), request(4, 0))
    assert [member.sequence for member in yielding_to(running, newcomer)] == expected


def test_all_yield_to_the_oldest_of_the_highest_priority() -> None:
    running = by_urgency(request(3), request(4))
    assert list(yielding_to(running, request(2))) == running
    assert list(yielding_to(running, request(5))) == []
    assert list(yielding_to([], request(5))) == []


def test_between_tenants_only_one_that_held_a_place_goes_by_age() -> None:
    running = by_urgency(request(3, tenant="a"), request(4, tenant="b"), request(5, -1, "c"))
    newcomer = request(2, tenant="a")
    assert list(yielding_to(running, newcomer)) == running[2:]
    assert list(yielding_to([running[0], running[2]], newcomer)) == [running[0], running[2]]
    newcomer.state = RequestState.PARKED
    assert list(yielding_to(running, newcomer)) == running
