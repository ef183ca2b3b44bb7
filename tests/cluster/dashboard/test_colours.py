"""Requests that are served together have colours that people can tell apart, whatever they see.

Distances are in OKLab, times 100: about 2 is what can just be seen between two patches side by
side. Eyes without one kind of cone see what Machado et al. 2009 say, at full severity.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from blockyard.cluster import dashboard

STYLE = (Path(dashboard.__path__[0]) / "static" / "yard.css").read_text()
THEMES = ("light", "dark")
NEIGHBOURS = 4
"""So many before and after one in the list, which begins anew after its end."""

# Of linear red, green and blue.
EYES = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red cones": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def seen(colours: list[str], eyes: str) -> NDArray[np.float64]:
    """Colours in OKLab, times 100, as those eyes see them: [colour][3]."""
    encoded = np.array([[int(c[at : at + 2], 16) / 255 for at in (1, 3, 5)] for c in colours])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    stimulus = np.clip(linear @ np.array(EYES[eyes]).T, 0, 1)
    points: NDArray[np.float64] = np.cbrt(stimulus @ np.array(CONES).T) @ np.array(OKLAB).T
    return 100 * points


def told(theme: str) -> dict[str, str]:
    """What the style sheet calls the theme's colours."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light if theme == "light" else dark))


def of_requests(theme: str) -> list[str]:
    named = told(theme)
    count = sum(name.startswith("own-") for name in named)
    return [named[f"own-{number}"] for number in range(count)]


def distances(colours: list[str], eyes: str) -> NDArray[np.float64]:
    """Between each two: [colour][colour]."""
    points = seen(colours, eyes)
    found: NDArray[np.float64] = np.linalg.norm(points[:, None] - points[None], axis=-1)
    return found


def test_distances_are_those_of_oklab() -> None:
    assert distances(["#000000", "#ffffff"], "all cones")[0, 1] == pytest.approx(100, abs=0.01)
    red_and_green = [distances(["#b3261e", "#6f7a1e"], eyes)[0, 1] for eyes in EYES]
    assert red_and_green[0] > 2 * red_and_green[2], "who has no green cones confuses these two"


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_neighbours_are_far_apart_and_no_two_alike(theme: str, eyes: str) -> None:
    colours = of_requests(theme)
    assert len(colours) >= 12
    number = np.arange(len(colours))
    apart = np.abs(number[:, None] - number[None])
    apart = np.minimum(apart, len(colours) - apart)
    found = distances(colours, eyes)
    assert found[(apart > 0) & (apart <= NEIGHBOURS)].min() > (14 if eyes == "all cones" else 8)
    assert found[apart > 0].min() > 5


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_a_request_is_not_taken_for_free_memory_nor_for_nobody(theme: str, eyes: str) -> None:
    named, colours = told(theme), of_requests(theme)
    others = [named[name] for name in ("free", "card", "mark")]
    found = distances([*colours, *others], eyes)[: len(colours), len(colours) :]
    assert found[:, :2].min() > 15
    assert found[:, 2].min() > 5
