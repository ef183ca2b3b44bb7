"""Devices that a replay can pretend to have: their memory and their speed, by name or from JSON.

Figures of known devices are from their data sheets; a file carries what somebody measured. Units:
bytes, bytes and operations a second, seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from blockyard.scheduler.roofline import H200, DeviceSpeed

__all__ = ["KNOWN_DEVICES", "Device", "DeviceUnknown", "device_from_json", "device_to_json"]


class DeviceUnknown(ValueError):
    """A device description lacks something or makes no sense; the message names the field."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `memory_bytes` is what a framework reports, not what the box says."""

    name: str
    memory_bytes: int
    speed: DeviceSpeed


KNOWN_DEVICES = {
    "h200": Device("h200", 139 * 2**30, H200),
    # PCIe 4.0 x16 reaches about 25 of its 32 GB/s.
    "a100": Device("a100", 79 * 2**30, DeviceSpeed(2.039e12, 312e12, 25e9)),
}
"""NVIDIA H200 SXM and A100 SXM with 80 GB, fp16."""


def device_from_json(name: str, value: object) -> Device:
    """A device from the fields of `DeviceSpeed` and `memory_bytes`.

    Raises:
        DeviceUnknown: naming the field that is missing, unknown or not a positive number.
    """
    if not isinstance(value, Mapping):
        raise DeviceUnknown(f"{name} holds no JSON object that describes a device")
    known = [field.name for field in fields(DeviceSpeed)]
    unknown = sorted(set(value) - {*known, "memory_bytes", "name"})
    if unknown:
        raise DeviceUnknown(
            f"{name}: no field {unknown[0]!r} is known; give memory_bytes, {', '.join(known)}"
        )
    numbers: dict[str, float] = {}
    for field in ("memory_bytes", *known):
        if field not in value:
            if field in known[3:]:
                continue  # has a default
            raise DeviceUnknown(f"{name} lacks {field}")
        number = value[field]
        if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
            raise DeviceUnknown(f"{name}: {field} is {number!r}; it must be a number above 0")
        numbers[field] = float(number)
    memory = int(numbers.pop("memory_bytes"))
    return Device(str(value.get("name", name)), memory, DeviceSpeed(**numbers))


def device_to_json(device: Device) -> dict[str, object]:
    """The object that `device_from_json` reads back."""
    speed = {field.name: getattr(device.speed, field.name) for field in fields(DeviceSpeed)}
    return {"name": device.name, "memory_bytes": device.memory_bytes, **speed}
