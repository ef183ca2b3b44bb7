"""Text that has come and was not read yet. Reading moves on in it, and copies what is taken alone.

Whoever reads takes all that may be taken at once, so that what stays is never longer than a mark:
then the work is in proportion to the text, however it is divided and whatever it says.
Units: characters.
"""

from collections.abc import Callable

__all__ = ["UnreadText"]


class UnreadText:
    """What was pushed, from the place up to which it was read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0

    def __len__(self) -> int:
        """Characters not read."""
        return len(self._text) - self._at

    @property
    def first(self) -> str:
        """The next one; there must be one."""
        return self._text[self._at]

    def push(self, text: str) -> None:
        """Append text."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def starts_with(self, mark: str) -> bool:
        """Whether `mark` comes next."""
        return self._text.startswith(mark, self._at)

    def may_become(self, mark: str) -> bool:
        """Whether all that is there begins `mark`, without being the whole of it."""
        return len(self) < len(mark) and mark.startswith(self._text[self._at :])

    def take(self, count: int) -> str:
        """The next `count`, or what there is."""
        taken = self._text[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def take_all(self) -> str:
        """All that is there."""
        return self.take(len(self))

    def take_blanks(self) -> str:
        """Blanks that come next."""
        end = self._at
        while end < len(self._text) and self._text[end].isspace():
            end += 1
        return self.take(end - self._at)

    def take_before(self, mark: str) -> str | None:
        """What stands before `mark`, which comes next then; None when it is not there."""
        place = self._text.find(mark, self._at)
        return self.take(place - self._at) if place >= 0 else None

    def peek_before(self, mark: str, within: int) -> str | None:
        """What stands before `mark`, if that ends within so many; nothing is taken."""
        place = self._text.find(mark, self._at, self._at + within)
        return self._text[self._at : place] if place >= 0 else None

    def take_certain(self, mark: str) -> str:
        """All but what may be the beginning of `mark` at its end."""
        for held in range(min(len(self), len(mark) - 1), 0, -1):
            if self._text.endswith(mark[:held]):
                return self.take(len(self) - held)
        return self.take_all()

    def feed(self, taker: Callable[[str], bool]) -> None:
        """Give out one after the other, for as long as `taker` wants more."""
        text = self._text
        for place in range(self._at, len(text)):
            self._at = place + 1
            if not taker(text[place]):
                return
