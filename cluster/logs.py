"""Log lines: one a record, as text for people or as JSON for machines, with fields beside it.

Whoever logs of a request gives its id as a field: `extra=fields(request_id=...)`.
Only the package's own loggers are set up, and only in processes that are ours alone. Knows no Ray.
"""

import json
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "LogConfig", "fields", "start_logging"]

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")

_LOGGER = "blockyard"
_STANDARD_ERROR = 2
"""The descriptor itself: Ray Serve puts an object of its own in the place of `sys.stderr`."""
_FIELDS = "blockyard_fields"
_MOST_TRACE_CHARACTERS = 3000
"""Of a traceback its end is kept: a line up to 4 KiB is written to a pipe in one piece."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the processes of a deployment log.

    Attributes:
        format: one of `LOG_FORMATS`.
        level: the least that is logged, one of `LOG_LEVELS`.
        file: a file or pipe that lines are appended to, the same path in every process; None means
            each process's standard error, which Ray keeps among its session's logs.
        prompts: log the prompts of requests, whoever they belong to.
    """

    format: str = "text"
    level: str = "INFO"
    file: str | None = None
    prompts: bool = False

    def __post_init__(self) -> None:
        """Refuse what is not known."""
        for name, known in (("format", LOG_FORMATS), ("level", LOG_LEVELS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"log {name} is {getattr(self, name)!r}; known are {', '.join(known)}"
                )


def fields(**values: object) -> dict[str, Any]:
    """What to hand to a logging call as `extra`; values of None are left out."""
    return {_FIELDS: {name: value for name, value in values.items() if value is not None}}


def start_logging(config: LogConfig) -> None:
    """Have this process log as told, from now on; to standard error if the file cannot be opened:
    a server without a log is better than none."""
    descriptor, failure = _STANDARD_ERROR, ""
    if config.file is not None:
        try:
            descriptor = _open(config.file)
        except OSError as error:
            failure = str(error)
    handler = _Writer(descriptor)
    handler.setFormatter(_JsonLines() if config.format == "json" else _TextLines())
    logger = logging.getLogger(_LOGGER)
    for old in [old for old in logger.handlers if isinstance(old, _Writer)]:
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(config.level)
    logger.propagate = False  # Ray Serve may have a handler of its own above
    if failure:
        logger.warning("lines go to standard error: %s", failure)


def _open(path: str) -> int:
    # Never waits: a reader of a pipe that has stopped must not stop those who serve.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


class _Writer(logging.Handler):
    """Writes each line at once: several processes share a file, and none cuts another's lines."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._descriptor, (self.format(record) + "\n").encode(errors="replace"))
        except OSError:
            pass  # nobody reads, or the disk is full: serving goes on
        except Exception:
            self.handleError(record)


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            **getattr(record, _FIELDS, {}),
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            line["error"] = _trace(self, record)
        return json.dumps(line, default=str)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = getattr(record, _FIELDS, {})
        line = f"{_moment(record)} {record.levelname} {record.name}: {record.getMessage()}"
        # As JSON, so that nothing a client has sent can begin a line of its own.
        line += "".join(f" {name}={json.dumps(told[name], default=str)}" for name in told)
        return f"{line}\n{_trace(self, record)}" if record.exc_info else line


def _moment(record: logging.LogRecord) -> str:
    """In UTC, as RFC 3339 has it."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    return formatter.formatException(record.exc_info)[-_MOST_TRACE_CHARACTERS:]
