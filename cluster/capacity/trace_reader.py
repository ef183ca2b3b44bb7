"""Recorded request arrivals from files: Azure's CSV, Mooncake's JSON lines, and our own.

Our own lines are `{"arrival_s": 1.25, "prompt_tokens": 512, "output_tokens": 100}`, with
`"prefix_ids": [7, 8]` where the prompts' leading pieces are known, of `"piece_tokens"` tokens each
(512 unless told). Reads facts and
judges none: a request of any length comes back as recorded. Units: seconds since the first
arrival, tokens.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from blockyard.scheduler.simulated.arrivals import PIECE_TOKENS

__all__ = ["TRACE_FORMATS", "TraceError", "TraceRequest", "read_trace"]

TRACE_FORMATS = ("azure", "mooncake", "jsonl")

_AZURE_COLUMNS = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}


class TraceError(ValueError):
    """A file is no trace, or one of its lines is broken; the message names the line."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One recorded request.

    `prefix_ids` name its prompt's leading pieces of `piece_tokens` tokens; equal id, equal text.
    """

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    prefix_ids: tuple[int, ...] = ()
    piece_tokens: int = PIECE_TOKENS

    @property
    def total_tokens(self) -> int:
        """Prompt and answer."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class _Fields:
    """What a format of JSON lines calls things, and how many of its time units make a second."""

    arrival: str
    prompt: str
    output: str
    prefix: str
    per_second: float


_LINE_FIELDS = {
    "mooncake": _Fields("timestamp", "input_length", "output_length", "hash_ids", 1000.0),
    "jsonl": _Fields("arrival_s", "prompt_tokens", "output_tokens", "prefix_ids", 1.0),
}


def read_trace(path: Path, trace_format: str | None = None) -> list[TraceRequest]:
    """All requests of a trace, in the order of the file.

    Args:
        path: of the file.
        trace_format: one of `TRACE_FORMATS`; None: told by the first line.

    Raises:
        TraceError: cannot be read, none of these formats or not the one given, or malformed.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            kind = trace_format or _tell_format(file.readline())
            file.seek(0)
            if kind in _LINE_FIELDS:
                return list(_read_lines(file, path, _LINE_FIELDS[kind]))
            if kind == "azure":
                return list(_read_csv(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the trace {path}: {error}") from None
    raise TraceError(
        f"{path} is no trace: its first line is neither a CSV header with "
        f"{', '.join(sorted(_AZURE_COLUMNS))} nor a JSON object with timestamp, input_length, "
        "output_length, or with arrival_s, prompt_tokens, output_tokens"
    )


def _tell_format(first: str) -> str | None:
    if first.lstrip().startswith("{"):
        return "jsonl" if '"arrival_s"' in first else "mooncake"
    columns = set(first.strip().lstrip("\ufeff").split(","))
    return "azure" if columns >= _AZURE_COLUMNS else None


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
        except KeyError as error:
            raise TraceError(f"{path}: the first line names no column {error}") from None
        except (TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {reader.line_num}: {error}") from None


def _read_lines(file: TextIO, path: Path, fields: _Fields) -> Iterator[TraceRequest]:
    start: float | None = None
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            arrival = float(entry[fields.arrival])
            start = arrival if start is None else start
            prompt, output = int(entry[fields.prompt]), int(entry[fields.output])
            ids = tuple(int(piece) for piece in entry.get(fields.prefix, ()))
            piece = int(entry.get("piece_tokens", PIECE_TOKENS))
            yield _checked((arrival - start) / fields.per_second, prompt, output, ids, piece)
        except KeyError as error:
            raise TraceError(f"{path}, line {number}: has no field {error}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {number}: {error}") from None


def _checked(
    arrival_seconds: float,
    prompt: int,
    output: int,
    prefix_ids: tuple[int, ...],
    piece_tokens: int = PIECE_TOKENS,
) -> TraceRequest:
    if prompt < 0 or output < 0 or prompt + output < 1:
        raise ValueError(f"a request of {prompt} + {output} tokens")
    if piece_tokens < 1:
        raise ValueError(f"pieces of {piece_tokens} tokens")
    return TraceRequest(arrival_seconds, prompt, output, prefix_ids, piece_tokens)
