"""The picture of the pool says what the books say."""

import random
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest

from blockyard.scheduler import yard_drawing
from blockyard.scheduler.yard_drawing import draw_yard, yard_pieces
from blockyard.scheduler.yard_map import NOBODY, YardMap


def numbers(cells: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(cells, dtype=np.uint8)


def owners(yard: YardMap) -> np.ndarray[Any, Any]:
    return np.frombuffer(yard.owners, dtype="<u2")


def hold_against_the_books(rig: Any) -> None:
    """One block to a cell: the picture is exact."""
    yard, ledger = draw_yard(rig.scheduler, rig.num_blocks), rig.scheduler.ledger()
    assert yard.blocks_per_cell == 1
    states = [numbers(cells) for cells in (yard.active, yard.cached, yard.fenced)]
    assert [int((cells == 255).sum()) for cells in states] == [
        ledger.blocks.active,
        ledger.blocks.cached,
        ledger.blocks.fenced,
    ]
    # A block is in one state, wholly.
    assert set(np.unique(sum(cells.astype(int) for cells in states))) <= {0, 255}
    slots = np.round(numbers(yard.filled).astype(int) * ledger.block_size / 255 - 0.49).astype(int)
    assert int(slots.sum()) == ledger.slots.filled
    assert ((owners(yard) != NOBODY) == (states[0] == 255)).all()
    held = np.unique(owners(yard))
    for index in held[held != NOBODY]:
        assert yard.requests[index].num_blocks >= 1
    assert yard.num_requests == len(yard.requests)
    live = (ledger.requests.running, ledger.requests.waiting + ledger.requests.parked)
    running = sum(request.state == "running" for request in yard.requests)
    assert (running, len(yard.requests) - running) == live


def test_every_moment_of_a_busy_pool(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]
) -> None:
    rig = make_rig(num_blocks=24, num_host_blocks=8, max_running=6)
    chance = random.Random(5)
    states: set[str] = set()
    for number in range(40):
        rig.submit(
            f"r{number}", prompt_of(chance.randint(1, 30), number % 7), chance.randint(1, 20)
        )
        for _ in range(chance.randint(1, 6)):
            rig.step()
            hold_against_the_books(rig)
            yard = draw_yard(rig.scheduler, 24)
            states |= {request.state for request in yard.requests}
    rig.finish()
    hold_against_the_books(rig)
    assert states >= {"running", "parked"}


@pytest.mark.parametrize("max_cells", [1, 5, 23, 24, 1000])
def test_cells_of_several_blocks_share_what_is_in_them(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]], max_cells: int
) -> None:
    rig = make_rig(num_blocks=24)
    for number in range(3):
        rig.submit(f"r{number}", prompt_of(20, number), 4)
    rig.step()
    rig.step()
    fine, coarse = draw_yard(rig.scheduler, 24), draw_yard(rig.scheduler, max_cells)
    cells = len(coarse.active)
    assert cells <= max_cells
    assert cells * coarse.blocks_per_cell >= 24 > (cells - 1) * coarse.blocks_per_cell
    per_cell = coarse.blocks_per_cell
    for cell in range(cells):
        inside = slice(cell * per_cell, (cell + 1) * per_cell)
        active = numbers(fine.active)[inside] == 255
        assert numbers(coarse.active)[cell] == -(-int(active.sum()) * 255 // len(active))
        held = [owner for owner in owners(fine)[inside] if owner != NOBODY]
        assert owners(coarse)[cell] == (held[0] if held else NOBODY)
    assert coarse.requests == fine.requests


def test_who_waits_says_why(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]
) -> None:
    rig = make_rig(num_blocks=8, max_running=2)
    for number in range(4):
        rig.submit(f"r{number}", prompt_of(12, number), 8)
    rig.step()
    requests = draw_yard(rig.scheduler, 8).requests
    waiting = [request for request in requests if request.state != "running"]
    assert len(waiting) >= 2
    assert all(request.reason for request in waiting)
    assert not any(request.reason for request in requests if request.state == "running")


def test_an_idle_pool_is_free(make_rig: Callable[..., Any]) -> None:
    yard = draw_yard(make_rig(num_blocks=10).scheduler, 4)
    assert (yard.active, yard.cached, yard.fenced) == (bytes(4),) * 3
    assert yard.requests == () and set(owners(yard)) == {NOBODY}


def finished(pieces: Generator[None, None, YardMap]) -> YardMap:
    while True:
        try:
            next(pieces)
        except StopIteration as drawn:
            yard: YardMap = drawn.value
            return yard


def test_pieces_make_the_same_picture(
    make_rig: Callable[..., Any],
    prompt_of: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = make_rig(num_blocks=24)
    for number in range(3):
        rig.submit(f"r{number}", prompt_of(20, number), 4)
    for _ in range(3):
        rig.step()
    whole = [draw_yard(rig.scheduler, cells) for cells in (5, 24)]
    monkeypatch.setattr(yard_drawing, "_PIECE_BLOCKS", 2)
    monkeypatch.setattr(yard_drawing, "_PIECE_CELL_BLOCKS", 7)
    for yard, cells in zip(whole, (5, 24), strict=True):
        pieces = yard_pieces(rig.scheduler, cells)
        assert sum(1 for _ in pieces) > 5
        assert finished(yard_pieces(rig.scheduler, cells)) == yard


def test_steps_go_on_while_a_picture_is_drawn(
    make_rig: Callable[..., Any],
    prompt_of: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(yard_drawing, "_PIECE_BLOCKS", 2)
    monkeypatch.setattr(yard_drawing, "_PIECE_CELL_BLOCKS", 7)
    rig = make_rig(num_blocks=24, num_host_blocks=8, max_running=6)
    chance = random.Random(7)
    for number in range(60):
        length = chance.randint(1, 30)
        rig.submit(f"r{number}", prompt_of(length, number % 7), chance.randint(1, 20))
        pieces = yard_pieces(rig.scheduler, 24)
        while True:
            try:
                next(pieces)
            except StopIteration as drawn:
                yard = drawn.value
                break
            rig.step()
        # Blocks change hands meanwhile; each is in one state all the same, and nothing is out of
        # range.
        states = sum(
            numbers(cells).astype(int) for cells in (yard.active, yard.cached, yard.fenced)
        )
        assert set(np.unique(states)) <= {0, 255}
        held = np.unique(owners(yard))
        assert all(index == NOBODY or index < yard.num_requests for index in held)
    rig.finish()


def test_a_large_pool_is_drawn_in_many_pieces(
    make_rig: Callable[..., Any], prompt_of: Callable[..., list[int]]
) -> None:
    rig = make_rig(num_blocks=1_000_000)
    rig.submit("r", prompt_of(20, 1), 4)
    rig.step()
    pieces = yard_pieces(rig.scheduler, 4096)
    assert sum(1 for _ in pieces) > 5
    assert sum(1 for _ in yard_pieces(make_rig(num_blocks=1000).scheduler, 4096)) == 0
