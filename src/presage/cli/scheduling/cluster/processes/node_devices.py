"""Devices of this machine, as agents manage them: detected, or given by --device."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from presage.cli.options.devices import device_named
from presage.errors import ConfigError
from presage.schedulers.live.agent.detected_devices import (
    VISIBLE_GPUS,
    detected_gpus,
    host_bytes,
)

if TYPE_CHECKING:
    from presage.schedulers.live.agent.slot import Slot

T = TypeVar("T")
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?")


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """Devices of one of several agents on this machine.

    Attributes
    ----------
    options : list of str
        Options of `presage cluster agent`.
    variables : dict of str to str
        Environment variables of the agent.
    count_by_kind : dict of str to int
        How many devices of each kind it has.
    """

    options: list[str]
    variables: dict[str, str]
    count_by_kind: dict[str, int]


def nodes_of(agents: int, memory_gib: float | None) -> list[NodeDevices]:
    """Return the devices of several agents that share this machine.

    Raises
    ------
    ConfigError
        There are more agents than devices.
    """
    gpus = detected_gpus(None)
    if gpus:  # an agent detects the kinds of its GPUs itself
        memory = [] if memory_gib is None else ["--memory-gib", str(memory_gib)]
        parts = _split(gpus, agents, f"GPUs, or processors with {VISIBLE_GPUS}=''")
        return [_gpu_node(part, memory) for part in parts]
    gib = memory_gib or host_bytes() / 2**30 / agents
    processors = _split(sorted(os.sched_getaffinity(0)), agents, "processors")
    return [_processor_node(part, gib) for part in processors]


def _gpu_node(gpus: Sequence[Slot], memory: list[str]) -> NodeDevices:
    visible = {VISIBLE_GPUS: ",".join(str(slot.cuda) for slot in gpus)}
    return NodeDevices(memory, visible, dict(Counter(slot.kind for slot in gpus)))


def _processor_node(processors: Sequence[int], memory_gib: float) -> NodeDevices:
    kind = f"cpu-{len(processors)}"
    device = f"{kind}={','.join(map(str, processors))}"
    options = ["--device", device, "--memory-gib", f"{memory_gib:.3f}"]
    return NodeDevices(options, {}, {kind: 1})


def _split(devices: Sequence[T], parts: int, what: str) -> list[Sequence[T]]:
    if parts > len(devices):
        raise ConfigError(
            f"--agents {parts}: each agent needs a device, and there are {len(devices)} {what}"
        )
    return [devices[i::parts] for i in range(parts)]


def slots_of(given: Sequence[str] | None, memory_gib: float | None) -> tuple[Slot, ...]:
    """Return the devices of one agent: those given by --device, else all of this machine.

    Raises
    ------
    ConfigError
        A device does not exist, or is not written as KIND=0,1 or KIND=gpu0.
    """
    from presage.schedulers.live.agent.slot import Slot

    memory_bytes = None if memory_gib is None else round(memory_gib * 2**30)
    if given:
        return _given_slots(given, memory_bytes)
    if gpus := detected_gpus(memory_bytes):
        return gpus
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return (Slot(f"cpu-{len(cpus)}", memory_bytes or host_bytes(), cpus),)


def _given_slots(given: Sequence[str], memory_bytes: int | None) -> tuple[Slot, ...]:
    with_processors = sum("=gpu" not in text for text in given)
    part_bytes = memory_bytes or host_bytes() // max(1, with_processors)
    slots = tuple(_slot(text, memory_bytes, part_bytes) for text in given)
    requested = [slot.cuda for slot in slots if slot.cuda is not None]
    detected = detected_gpus(None) if requested else ()
    by_number = {slot.cuda: slot for slot in detected}
    absent = sorted({*requested} - by_number.keys())
    if absent:
        raise ConfigError(
            f"--device ...=gpu{absent[0]}: the driver shows no such GPU here; see nvidia-smi -L"
        )
    return tuple(
        slot if slot.cuda is None else _identified(slot, by_number[slot.cuda]) for slot in slots
    )


def _identified(slot: Slot, detected: Slot) -> Slot:
    """Return a GPU with the ids that the driver reports."""
    return replace(slot, device_id=detected.device_id, pci_address=detected.pci_address)


def with_addresses(slots: tuple[Slot, ...], addresses: Sequence[str] | None) -> tuple[Slot, ...]:
    """Return devices with the PCI addresses of --pci-address, else unchanged.

    Raises
    ------
    ConfigError
        There is not one address for each device, or it is not written as 0000:3b:00.
    """
    from presage.schedulers.health.xid import normal_bus

    if not addresses:
        return slots
    wrong = next((one for one in addresses if not _ADDRESS.fullmatch(one)), None)
    if wrong is not None:
        raise ConfigError(f"--pci-address {wrong!r}: write DOMAIN:BUS:DEVICE, such as 0000:3b:00")
    buses = [normal_bus(one) for one in addresses]
    if len(set(buses)) != len(slots) or len(buses) != len(slots):
        raise ConfigError(
            f"--pci-address: {len(set(buses))} different addresses for {len(slots)} devices; give "
            "one for each device"
        )
    return tuple(replace(slot, pci_address=bus) for slot, bus in zip(slots, buses, strict=True))


def _slot(text: str, memory_bytes: int | None, part_bytes: int) -> Slot:
    from presage.schedulers.live.agent.slot import Slot

    kind, equals, where = text.partition("=")
    if where.startswith("gpu") and where[3:].isdecimal():
        known = memory_bytes or device_named(kind, f"--device {text}").memory_bytes
        return Slot(kind, known, cuda=int(where[3:]))
    if not equals or not all(part.isdecimal() for part in where.split(",")):
        raise ConfigError(f"--device {text!r}: write KIND=0,1 for processors, or KIND=gpu0")
    cpus = tuple(int(part) for part in where.split(","))
    absent = sorted(set(cpus) - os.sched_getaffinity(0))
    if absent:
        raise ConfigError(f"--device {text!r}: this process may not use processor {absent[0]}")
    return Slot(kind, part_bytes, cpus)
