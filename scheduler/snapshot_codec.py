"""Snapshots of requests as plain values, such as JSON has: for whatever stores or carries them.

The version stands in each value; what does not fit, whoever wrote it, is refused by the name of the
part at fault. Field by field as the dataclasses declare them, so a new parameter is carried as soon
as it is there.
"""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from blockyard.scheduler.snapshot import RequestSnapshot

__all__ = ["SNAPSHOT_VERSION", "SnapshotInvalid", "decode_snapshot", "encode_snapshot"]

SNAPSHOT_VERSION = 1


class SnapshotInvalid(ValueError):
    """A value is no snapshot of this version; the message names the part."""


def encode_snapshot(snapshot: RequestSnapshot) -> dict[str, Any]:
    """Only dicts, lists, strings, numbers, booleans and None. Bytes become hexadecimal text."""
    return {"version": SNAPSHOT_VERSION, **_encode(snapshot)}


def decode_snapshot(value: object) -> RequestSnapshot:
    """The snapshot that `encode_snapshot` made `value` from, perhaps by way of JSON.

    Raises:
        SnapshotInvalid: it is of another version, or a part is missing, unknown or of a wrong kind.
    """
    if not isinstance(value, dict):
        raise SnapshotInvalid(f"a snapshot is an object, this is {type(value).__name__}")
    version = value.get("version")
    if version != SNAPSHOT_VERSION:
        raise SnapshotInvalid(f"version is {version!r}; version {SNAPSHOT_VERSION} is understood")
    parts = {name: part for name, part in value.items() if name != "version"}
    decoded = _decode(RequestSnapshot, parts, "snapshot")
    assert isinstance(decoded, RequestSnapshot)
    return decoded


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [_encode(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def _decode(kind: Any, value: Any, path: str) -> Any:
    """`value` as one of `kind`, a type as dataclasses name it."""
    if is_dataclass(kind):
        return _decode_object(kind, value, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        return _decode(kind, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise SnapshotInvalid(f"{path} is no list")
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(value)
        if len(arguments) != len(value):
            raise SnapshotInvalid(f"{path} has {len(value)} items, not {len(arguments)}")
        pairs = enumerate(zip(arguments, value, strict=True))
        return tuple(_decode(argument, item, f"{path}[{i}]") for i, (argument, item) in pairs)
    if kind is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise SnapshotInvalid(f"{path} is no hexadecimal text") from None
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise SnapshotInvalid(f"{path} is {type(value).__name__}, not {kind.__name__}")
    return value


def _decode_object(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise SnapshotInvalid(f"{path} is no object")
    hints = _hints(kind)
    if unknown := value.keys() - hints.keys():
        raise SnapshotInvalid(f"{path} has an unknown part {min(map(str, unknown))!r}")
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in value]
    if missing:
        raise SnapshotInvalid(f"{path} lacks {missing[0]!r}")
    try:
        return kind(**{n: _decode(hints[n], part, f"{path}.{n}") for n, part in value.items()})
    except SnapshotInvalid:
        raise
    except ValueError as error:  # its own checks
        raise SnapshotInvalid(f"{path}: {error}") from None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields; looked up once, for it is slow."""
    return get_type_hints(kind)
