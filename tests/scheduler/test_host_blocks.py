import pytest

from blockyard.scheduler.block_table import BlockTable
from blockyard.scheduler.host_blocks import HostBlocks
from blockyard.scheduler.plan import BlockCopy
from blockyard.scheduler.request import Request, RequestSpec
from blockyard.scheduler.sampling import SamplingParams


def request(sequence: int = 0) -> Request:
    return Request(
        spec=RequestSpec(f"r{sequence}", (1, 2), SamplingParams()),
        sequence=sequence,
        max_tokens=2,
        table=BlockTable(4),
        arrived_at=0.0,
    )


def test_blocks_go_out_and_come_back_in_their_order() -> None:
    host, one = HostBlocks(4, 4), request()
    assert host.save(one, 3, (10, 11))
    assert host.save(one, 2, (9,)), "what comes before goes in front"
    assert (one.host_ids, one.host_start) == ([2, 0, 1], 2)
    assert host.take_moves(1) == (
        (BlockCopy(10, 0), BlockCopy(11, 1), BlockCopy(9, 2)),
        (),
    )
    host.check([one])
    assert [host.num_restorable(one, base) for base in (1, 2, 3, 5, 6)] == [0, 3, 2, 0, 0]
    host.restore(one, (20, 21), step=2)
    assert host.take_moves(2) == ((), (BlockCopy(0, 20), BlockCopy(1, 21)))
    assert one.host_ids == []
    assert (host.num_saved, host.num_restored) == (3, 2)
    host.check([one])


def test_a_host_block_is_given_out_again_behind_its_fence() -> None:
    host, one, two = HostBlocks(1, 4), request(), request(1)
    assert host.save(one, 0, (5,))
    host.take_moves(1)
    host.restore(one, (6,), step=3)
    assert not host.save(two, 0, (7,))
    host.acknowledge(2)
    assert not host.save(two, 0, (7,))
    host.acknowledge(3)
    assert host.save(two, 0, (7,))


def test_a_dropped_copy_out_keeps_its_fence() -> None:
    host, one = HostBlocks(1, 4), request()
    assert host.save(one, 0, (5,))
    host.take_moves(4)
    host.drop(one)
    host.drop(one)
    assert (host.counts().fenced, host.num_available) == (1, 0)
    host.acknowledge(4)
    assert host.num_available == 1


def test_a_copy_that_is_not_planned_yet_is_called_off() -> None:
    host, one = HostBlocks(1, 4), request()
    assert host.save(one, 0, (5,))
    assert host.num_pending_outs == 1
    host.drop(one)
    assert host.num_available == 1
    assert host.take_moves(1) == ((), ())


def test_the_last_blocks_make_room_for_those_before() -> None:
    host, one, two = HostBlocks(3, 4), request(), request(1)
    assert host.save(two, 0, (1,))
    assert host.save(one, 5, (5, 6))
    host.take_moves(1)
    assert not host.save(one, 2, (2, 3, 4)), "no room, whatever it gives up"
    assert len(one.host_ids) == 2
    assert not host.save(one, 4, (4,)), "the one given up is behind its fence"
    host.acknowledge(1)
    assert host.save(one, 4, (4,))
    assert (len(one.host_ids), one.host_start) == (2, 4)
    assert host.num_restorable(one, 4) == 2
    host.check([one, two])


def test_without_a_host_pool_nothing_is_saved() -> None:
    host, one = HostBlocks(0, 4), request()
    assert not host.save(one, 0, (1,))
    assert host.num_available == host.counts().total == 0
    host.acknowledge(1)
    host.drop(one)
    host.check([one])


def test_check_sees_blocks_of_nobody_and_of_two() -> None:
    host, one, two = HostBlocks(2, 4), request(), request(1)
    assert host.save(one, 0, (1,))
    with pytest.raises(AssertionError, match=r"host blocks \[0\] are held for nobody"):
        host.check([two])
    two.host_ids = one.host_ids
    with pytest.raises(AssertionError, match="'r1' names host block 0, which is not its own"):
        host.check([one, two])
