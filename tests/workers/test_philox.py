"""Published vectors of Philox4x32-10 (Random123's known-answer file)."""

import pytest
import torch

from blockyard.workers.philox import philox4x32

ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    word_0, word_1, word_2, word_3 = (torch.tensor([word]) for word in counter)
    key_0, key_1 = (torch.tensor([word]) for word in key)
    words = philox4x32((word_0, word_1, word_2, word_3), (key_0, key_1))
    assert tuple(int(word) for word in words) == expected
