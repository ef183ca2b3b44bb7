"""Ranks in real processes: sums, pieces, death of a peer, a new generation with the survivors."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blockyard.workers.collectives import Communicator, choose_transport
from blockyard.workers.config import Formation

pytestmark = pytest.mark.timeout(300)  # on a busy machine

RANK = """
import dataclasses, json, sys, time, torch
from blockyard.workers.collectives import Communicator
from blockyard.workers.config import Formation
from blockyard.workers.transport import PeerLost
torch.set_num_threads(1)
rank, size = int(sys.argv[1]), int(sys.argv[2])
ours = Communicator(rank, size)

def sums(count, dtype):
    torch.manual_seed(rank)
    total = ours.all_reduce(torch.randn(count).to(getattr(torch, dtype)))
    torch.manual_seed(0)
    wanted = sum(
        torch.randn(count, generator=torch.Generator().manual_seed(peer)).double()
        for peer in range(size)
    )
    close = torch.allclose(total.double(), wanted, atol=1e-5 if dtype == "float32" else 0.1)
    return [close, hash(total.float().numpy().tobytes().hex())]

def pieces(width):
    whole = ours.gather_columns(torch.full((3, width), float(rank)))
    return [list(whole.shape), sorted(set(whole[:, ::width].flatten().tolist()))]

def token():
    return ours.broadcast(torch.tensor([rank + 7])).tolist()

def until_lost():
    begin = last = time.monotonic()
    try:
        while time.monotonic() < begin + 60:
            last = time.monotonic()
            ours.all_reduce(torch.ones(16, 576))
    except PeerLost:
        return time.monotonic() - last

calls = {
    "open": lambda *a: dataclasses.astuple(ours.open(*a)),
    "join": lambda *a: ours.join(Formation(*a), 60.0),
    "sums": sums, "pieces": pieces, "token": token, "until_lost": until_lost,
}
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(calls[name](*arguments)), flush=True)
"""


class Ranks:
    """Three ranks; calls go to all at once, and their answers are read in order."""

    def __init__(self) -> None:
        self.processes = [self._start(rank) for rank in range(3)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RANK, str(rank), "3"]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, *call: Any, ranks: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
        self.send(*call, ranks=ranks)
        return [self.answer(rank) for rank in ranks]

    def send(self, *call: Any, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
        for rank in ranks:
            stdin = self.processes[rank].stdin
            assert stdin is not None
            stdin.write(json.dumps(call) + "\n")
            stdin.flush()

    def answer(self, rank: int) -> Any:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        return json.loads(stdout.readline())

    def meet(self, transport: str, generation: int) -> None:
        (formation,) = self.ask("open", transport, generation, "127.0.0.1", ranks=(0,))
        self.ask("join", *formation)

    def kill(self, rank: int) -> None:
        process = self.processes[rank]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.processes[rank] = self._start(rank)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Started once: who is killed is replaced, and the others go on, as in a group."""
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_sums_and_pieces_then_a_death_and_a_new_generation(ranks: Ranks, transport: str) -> None:
    ranks.meet(transport, 1)
    for count, dtype in ((16 * 576, "float32"), (700_001, "float32"), (5000, "bfloat16")):
        answers = ranks.ask("sums", count, dtype)
        assert answers[0][0] is True
        assert answers == [answers[0]] * 3  # the same bits everywhere
    for width in (5, 300_000):
        whole, *others = ranks.ask("pieces", width)
        assert whole == [[3, 3 * width], [0.0, 1.0, 2.0]]
        assert [shape for shape, _ in others] == [[3, width]] * 2
    assert ranks.ask("token") == [[7]] * 3
    ranks.send("until_lost", ranks=(0, 1))
    ranks.kill(2)
    assert all(ranks.answer(rank) is not None for rank in (0, 1))
    ranks.meet(transport, 2)
    answers = ranks.ask("sums", 100, "float32")
    assert answers[0][0] is True and answers == [answers[0]] * 3


def test_rank_zero_may_die_too(ranks: Ranks) -> None:
    ranks.meet("gloo", 1)
    ranks.send("until_lost", ranks=(1, 2))
    ranks.kill(0)
    assert all(ranks.answer(rank) is not None for rank in (1, 2))
    ranks.meet("gloo", 2)
    assert ranks.ask("token") == [[7]] * 3


def test_no_name_is_left_in_shared_memory(ranks: Ranks) -> None:
    (formation,) = ranks.ask("open", "shm", 1, "127.0.0.1", ranks=(0,))
    assert os.path.exists(formation[1])
    ranks.ask("join", *formation)
    assert not os.path.exists(formation[1])


def test_transports_by_device_and_machines() -> None:
    assert choose_transport("cuda:0", ["one", "one"]) == "nccl"
    assert choose_transport("cpu", ["one", "two"]) == "gloo"
    assert choose_transport("cpu", ["one", "one"]) in ("shm", "gloo")


def test_one_rank_alone_needs_nobody() -> None:
    import torch

    alone = Communicator()
    assert alone.joined
    tensor = torch.arange(6.0).view(2, 3)
    for collective in (alone.all_reduce, alone.gather_columns, alone.broadcast):
        assert torch.equal(collective(tensor), tensor)


def test_a_rank_that_has_not_joined_stands_alone_with_whole_shapes() -> None:
    import torch

    first, second = Communicator(0, 2), Communicator(1, 2)
    assert not first.joined
    tensor = torch.ones(2, 3)
    assert torch.equal(first.all_reduce(tensor), tensor)
    assert first.gather_columns(tensor).shape == (2, 6)
    assert second.gather_columns(tensor).shape == (2, 3)


@pytest.mark.parametrize("make", [lambda: Communicator(2, 2), lambda: Communicator(-1, 2)])
def test_a_rank_outside_its_group_is_refused(make: Callable[[], Communicator]) -> None:
    with pytest.raises(ValueError, match="rank is"):
        make()


def test_a_formation_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 ranks meet, but this one is of 2"):
        Communicator(0, 2).join(Formation("shm", "/nowhere", 1, 3))
