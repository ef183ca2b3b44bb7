"""Recorded request arrivals from files: Azure's CSV and Mooncake's JSON lines.

Reads facts and judges none: a request of any length comes back as recorded. Units: seconds since
the first arrival, tokens.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

__all__ = ["TraceError", "TraceRequest", "read_trace"]

_AZURE_COLUMNS = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}


class TraceError(ValueError):
    """A file is no trace, or one of its lines is broken; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request. `prefix_ids` name its prompt's leading pieces; equal id, equal text."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()

    @property
    def total_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a trace, in the order of the file; the format is told by the first line.

    Raises:
        TraceError: cannot be read, neither of the two formats, or malformed.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline()
            file.seek(0)
            if first.lstrip().startswith("{"):
                return list(_read_lines(file, path))
            if set(first.strip().lstrip("\ufeff").split(",")) >= _AZURE_COLUMNS:
                return list(_read_csv(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the trace {path}: {error}") from None
    raise TraceError(
        f"{path} is no trace: its first line is neither a CSV header with "
        f"{', '.join(sorted(_AZURE_COLUMNS))} nor a JSON object with timestamp, input_length, "
        "output_length"
    )


def _read_csv(file: TextIO, path: Path) -> Iterator[TraceRequest]:
    reader = csv.DictReader(file)
    reader.fieldnames = [name.lstrip("\ufeff") for name in reader.fieldnames or ()]
    start: datetime | None = None
    for row in reader:
        try:
            arrival = datetime.fromisoformat(row["TIMESTAMP"])
            start = start or arrival
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            yield _checked((arrival - start).total_seconds(), prompt, output, ())
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {reader.line_num}: {error}") from None


def _read_lines(file: TextIO, path: Path) -> Iterator[TraceRequest]:
    start: float | None = None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            arrival = float(entry["timestamp"])
            start = arrival if start is None else start
            prompt, output = int(entry["input_length"]), int(entry["output_length"])
            ids = tuple(int(piece) for piece in entry.get("hash_ids", ()))
            yield _checked((arrival - start) / 1000, prompt, output, ids)
        except KeyError as error:
            raise TraceError(f"{path}, line {number}: has no field {error}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None


def _checked(
    arrival_seconds: float, prompt: int, output: int, prefix_ids: tuple[int, ...]
) -> TraceRequest:
    if prompt < 0 or output < 0 or prompt + output < 1:
        raise ValueError(f"a request of {prompt} + {output} tokens")
    return TraceRequest(arrival_seconds, prompt, output, prefix_ids)
