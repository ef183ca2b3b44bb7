"""Runs parts one after the other and tells the parent process of each row as it is there.

What the document holds so far comes by standard input. A part that fails ends with its message and
the next one begins, unless the device has been lost: then this process ends, and the parent makes
another.
"""

import argparse
import importlib
import json
import math
import os
import sys
import time
import traceback
from typing import Any

from plan import PARTS

__all__ = ["Context", "main"]

_MESSAGE_LENGTH = 1500
_LEAST_SECONDS = 3.0
_LOST = 17
"""Exit status of a process whose device answers no more."""


class Context:
    """What a part is given.

    Attributes:
        device: see `device.py`.
        sizes: see `sizes.py`.

    Args:
        pipe: where to tell the parent.
        known: the document as it was when this process began.
    """

    def __init__(self, device: Any, sizes: Any, pipe: int, known: dict[str, Any]) -> None:
        self.device = device
        self.sizes = sizes
        self._pipe = pipe
        self._rows = {part["name"]: part["rows"] for part in known["parts"]}
        self._part = ""
        self._until = 0.0

    def begin(self, part: str, until: float) -> None:
        """Rows are this part's from now on."""
        self._part, self._until = part, until
        self._rows[part] = []

    def left(self) -> float:
        """Seconds of this part's budget."""
        return self._until - time.monotonic()

    def row(self, **values: Any) -> None:
        """Tell one result; what is no number goes by its name, for JSON has none."""
        values = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        self._rows[self._part].append(values)
        self.tell(event="row", row=values)

    def rows(self, part: str) -> list[dict[str, Any]]:
        """What another part has told so far."""
        return list(self._rows.get(part, ()))

    def out_of_time(self, remaining: int) -> bool:
        """Whether to stop, with so many cases left; tells so."""
        if self.left() > 0 or not remaining:
            return False
        self.row(skipped=f"{remaining} cases: the part's time is up")
        return True

    def tell(self, **event: Any) -> None:
        """Send one message to the parent."""
        os.write(self._pipe, json.dumps(event).encode() + b"\n")


def main() -> int:
    """Run the parts named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("parts", nargs="+")
    options = parser.parse_args()
    known = json.load(sys.stdin)
    from device import make_device
    from sizes import CARD, REHEARSAL

    context = Context(
        make_device(options.cpu),
        REHEARSAL if options.cpu else CARD,
        options.pipe,
        known,
    )
    context.tell(event="device", name=context.device.name)
    by_name = {part.name: part for part in PARTS}
    for part in (by_name[name] for name in options.parts):
        now = time.monotonic()
        seconds = min(part.seconds * options.factor, options.until - now)
        context.tell(event="begin", part=part.name, seconds=max(0.0, seconds))
        if seconds < _LEAST_SECONDS:
            _end(context, "skipped", f"{max(0.0, seconds):.0f} s are left of the budget", now)
            continue
        context.begin(part.name, now + seconds)
        try:
            module, _, function = part.place.partition(":")
            getattr(importlib.import_module(module), function)(context)
        except Exception:
            _end(context, "failed", traceback.format_exc()[-_MESSAGE_LENGTH:], now)
            if not context.device.alive():
                return _LOST
        else:
            _end(context, "done", "", now)
        context.device.clear()
    return 0


def _end(context: Context, state: str, message: str, began: float) -> None:
    seconds = round(time.monotonic() - began, 2)
    context.tell(event="end", state=state, message=message, seconds=seconds)


if __name__ == "__main__":
    sys.exit(main())
