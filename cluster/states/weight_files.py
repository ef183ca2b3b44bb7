"""Which directories weights may be loaded from at a caller's word: those below one root.

What is said to callers names directories as they did, never where the root is.
"""

from pathlib import Path

__all__ = ["OutsideRoot", "directory_below", "weights_under"]


class OutsideRoot(ValueError):
    """A directory is not one that weights may be loaded from."""


def weights_under(root: Path | None, directory: str) -> Path:
    """The directory that is called so below `root`, links followed.

    Raises:
        OutsideRoot: it is not below `root`, or is no directory; or there is no root.
    """
    if root is None:
        raise OutsideRoot(
            "this server loads no other weights; start it with `blockyard serve --weights-root`"
        )
    return directory_below(root, directory, "the directory of weights")


def directory_below(root: Path, directory: str, called: str) -> Path:
    """The same of any root that there is; `called` is what callers are told it is.

    Raises:
        OutsideRoot: see `weights_under`.
    """
    try:
        base = root.resolve(strict=True)
        found = (base / directory).resolve()
        inside = found.is_relative_to(base) and found != base
        is_there = inside and found.is_dir()
    except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte, too long a name
        inside = False
    if not inside:
        raise OutsideRoot(f"{directory!r} is not below {called}")
    if not is_there:
        raise OutsideRoot(f"there is no directory {directory!r} below {called}")
    return found
