"""Devices that a replay can pretend to have: their memory and their speed, by name or from JSON.

Figures of known devices are from their data sheets; a file tells another data sheet, or what was
measured with one model. Units: bytes, bytes and operations a second, seconds.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from blockyard.scheduler.simulated.measured_cost import MeasuredCost
from blockyard.scheduler.simulated.roofline import H200, DeviceSpeed

__all__ = ["KNOWN_DEVICES", "Device", "DeviceUnknown", "device_from_json", "device_to_json"]


class DeviceUnknown(ValueError):
    """A device description lacks something or makes no sense; the message names the field."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `memory_bytes` is what a framework reports, not what the box says.

    `speed` is for any model, by a roofline; a `MeasuredCost` for the one it was measured with.
    """

    name: str
    memory_bytes: int
    speed: DeviceSpeed | MeasuredCost


KNOWN_DEVICES = {
    "h200": Device("h200", 139 * 2**30, H200),
    # PCIe 4.0 x16 reaches about 25 of its 32 GB/s.
    "a100": Device("a100", 79 * 2**30, DeviceSpeed(2.039e12, 312e12, 25e9)),
}
"""NVIDIA H200 SXM and A100 SXM with 80 GB, fp16."""


def device_from_json(name: str, value: object) -> Device:
    """A device from `memory_bytes` and either the fields of `DeviceSpeed` or a `measured` object.

    Raises:
        DeviceUnknown: naming the field that is missing, unknown or not a positive number.
    """
    if not isinstance(value, Mapping):
        raise DeviceUnknown(f"{name} holds no JSON object that describes a device")
    title = str(value.get("name", name))
    if "measured" in value:
        memory = _numbers(name, value, ("memory_bytes",), ("name", "measured"))["memory_bytes"]
        try:
            measured = dict(value["measured"])
            for field in ("token_counts", "token_seconds"):
                measured[field] = tuple(measured[field])
            return Device(title, int(memory), MeasuredCost(**measured))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceUnknown(
                f"{name}: `measured` is not as blockyard calibrate writes it ({error}); run it anew"
            ) from None
    required = tuple(field.name for field in fields(DeviceSpeed))[:3]
    optional = tuple(field.name for field in fields(DeviceSpeed))[3:]
    numbers = _numbers(name, value, ("memory_bytes", *required), ("name", *optional))
    memory = numbers.pop("memory_bytes")
    return Device(title, int(memory), DeviceSpeed(**numbers))


def device_to_json(device: Device) -> dict[str, Any]:
    """The object that `device_from_json` reads back."""
    head: dict[str, Any] = {"name": device.name, "memory_bytes": device.memory_bytes}
    if isinstance(device.speed, MeasuredCost):
        return {**head, "measured": asdict(device.speed)}
    return {**head, **asdict(device.speed)}


def _numbers(
    name: str, value: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, float]:
    """The fields that are numbers, each above 0."""
    known = (*required, *optional)
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise DeviceUnknown(f"{name}: no field {unknown[0]!r} is known; give {', '.join(known)}")
    numbers: dict[str, float] = {}
    for field in known:
        if field in ("name", "measured"):
            continue
        if field not in value:
            if field in required:
                raise DeviceUnknown(f"{name} lacks {field}")
            continue
        number = value[field]
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise DeviceUnknown(f"{name}: {field} is {number!r}; it must be a number above 0")
        numbers[field] = float(number)
    return numbers
