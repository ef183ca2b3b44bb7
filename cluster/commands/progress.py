"""A progress bar on the terminal for downloads, conversion and load; on stderr.

Implements `blockyard.workers.progress.ProgressReporter`. Units: bytes.
"""

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Column

__all__ = ["StageProgress", "TerminalProgress"]

_FIGURES = (DownloadColumn, TransferSpeedColumn, TimeElapsedColumn)


class TerminalProgress:
    """Shows one bar for each stage; use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        """`console` is standard error unless given."""
        self._console = console or Console(stderr=True)
        label = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            TextColumn("{task.description}", table_column=label),
            BarColumn(bar_width=16),
            *(column(table_column=Column(no_wrap=True)) for column in _FIGURES),
            console=self._console,
            expand=True,
            # A log gets a line for each stage instead of a bar.
            disable=not self._console.is_terminal,
        )
        self._stage: TaskID | None = None

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        """Stop drawing; the last stage is complete unless something failed."""
        if exception_type is None:
            self._complete()
        self._progress.stop()

    def stage(self, name: str, total_bytes: int | None) -> None:
        """A new stage begins and the one before is over."""
        self._complete()
        if not self._console.is_terminal:
            self._console.print(f"{name} ...", highlight=False, soft_wrap=True)
        self._stage = self._progress.add_task(name, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        """So many more bytes of the current stage are done."""
        if self._stage is not None:
            self._progress.advance(self._stage, num_bytes)

    def _complete(self) -> None:
        if self._stage is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._stage)
        done = task.total if task.total is not None else max(task.completed, 1)
        self._progress.update(self._stage, total=done, completed=done)
        self._stage = None


class StageProgress:
    """Shows the stage that a start or a stop is in and how long it takes; a context manager.

    Where standard error is not a terminal each stage is printed once, as a line.
    """

    def __init__(self, console: Console | None = None) -> None:
        """`console` is standard error unless given."""
        self._console = console or Console(stderr=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._shown = ""

    def __enter__(self) -> Self:
        """Show nothing yet."""
        return self

    def __exit__(self, *rest: object) -> None:
        """Stop drawing."""
        self.close()

    def stage(self, name: str) -> None:
        """The work is in this stage now."""
        if name == self._shown:
            return
        self._shown = name
        if not self._console.is_terminal:
            self._console.print(f"{name} ...", highlight=False)
            return
        if self._progress is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
        elif self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=None)

    def close(self) -> None:
        """Stop drawing; a later stage begins anew."""
        if self._progress is not None:
            self._progress.stop()
        self._progress = None
        self._task = None
