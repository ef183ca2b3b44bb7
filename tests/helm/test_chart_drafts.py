"""Models that guess for others, from values to pods."""

from collections.abc import Callable
from typing import Any


def test_a_model_that_guesses_is_fetched_beside_the_other(
    render: Callable[..., Any], full: dict[str, Any]
) -> None:
    (small,) = (model for model in full["models"] if model["name"] == "small")
    small |= {"speculate": "draft", "draftModel": "org/tiny@v2"}
    fetched = {
        container["name"]: container["command"][3]
        for container in render(full).pods["engine-small"]["initContainers"]
    }
    assert fetched == {"fetch-small": "smollm2-135m", "fetch-small-draft": "org/tiny@v2"}
