"""Measured step times of a model by number of devices, nodes and batch size."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from presage.errors import TableError


class ScalingRow(NamedTuple):
    """Measured step: ``batch`` is that of each device."""

    nodes: int
    devices: int
    batch: int
    step_s: float


class ScalingCurve:
    """Step time of a model on a kind of device, interpolated between measurements.

    Measured values are kept as they are, also where more devices are slower: real links are so. For
    other sizes these rules apply:

    - No placement is more consolidated than those measured: eight devices of a node count as two
      nodes of four if nodes of four were measured.
    - A number of nodes that was not measured counts as the next larger one, and the number of
      devices is interpolated linearly between those measured on as many nodes.
    - More devices than measured are no faster than the most that were measured.
    - The batch is interpolated linearly. One below those measured takes as long as the smallest;
      one above is split into equal micro-batches, as by gradient accumulation: all but the last
      take as long as a step on one device.

    Raises
    ------
    TableError
        A step time is not a finite number > 0, or no step on one device was measured.
    """

    def __init__(self, rows: Iterable[ScalingRow], name: str) -> None:
        batches: dict[tuple[int, int], dict[int, list[float]]] = {}
        for row in rows:
            if not 0 < row.step_s < math.inf:
                raise TableError(
                    f"scale_out: {name} on {row.devices} devices has a step of {row.step_s} s, "
                    "must be a finite number > 0; fix the row, or drop it"
                )
            size = batches.setdefault((row.nodes, row.devices), {})
            size.setdefault(row.batch, []).append(row.step_s)
        if (1, 1) not in batches:
            raise TableError(f"scale_out: {name} has no step on one device; measure it")
        self._steps: Mapping[tuple[int, int], tuple[Sequence[int], Sequence[float]]] = {
            size: _medians(times) for size, times in batches.items()
        }
        self._devices: dict[int, list[int]] = {}
        for nodes, devices in sorted(self._steps):
            self._devices.setdefault(nodes, []).append(devices)
        self._widest = max(-(-devices // nodes) for nodes, devices in self._steps)
        self._cache: dict[tuple[float, int, int], float] = {}

    def step_s(self, batch: float, devices: int, nodes: int) -> float:
        """Return the seconds of a step in which all devices together process ``batch`` samples."""
        key = batch, devices, nodes
        if key not in self._cache:
            self._cache[key] = self._step_s(*key)
        return self._cache[key]

    def _step_s(self, batch: float, devices: int, nodes: int) -> float:
        nodes = max(nodes, -(-devices // self._widest))
        known = min((n for n in self._devices if n >= nodes), default=max(self._devices))
        counts, each = self._devices[known], batch / devices
        if devices >= counts[-1]:  # beyond those measured, as many samples in the same time
            return self._at((known, counts[-1]), batch / counts[-1])
        above = bisect_left(counts, devices)
        if counts[above] == devices or above == 0:
            return self._at((known, counts[above]), each)
        low, high = counts[above - 1], counts[above]
        part = (devices - low) / (high - low)
        return self._at((known, low), each) * (1 - part) + self._at((known, high), each) * part

    def _at(self, size: tuple[int, int], batch: float) -> float:
        largest = self._steps[size][0][-1]
        micro_batches = math.ceil(batch / largest - 1e-9)
        if micro_batches <= 1:
            return _interpolate(*self._steps[size], batch)
        each = batch / micro_batches
        accumulated = (
            self._at((1, 1), each) if size != (1, 1) else _interpolate(*self._steps[size], each)
        )
        return (micro_batches - 1) * accumulated + _interpolate(*self._steps[size], each)


def _medians(times: Mapping[int, list[float]]) -> tuple[Sequence[int], Sequence[float]]:
    batches = sorted(times)
    return batches, [sorted(times[batch])[len(times[batch]) // 2] for batch in batches]


def _interpolate(at: Sequence[int], values: Sequence[float], position: float) -> float:
    above = bisect_left(at, position)
    if above == 0:
        return values[0]
    if above == len(at):
        return values[-1]
    part = (position - at[above - 1]) / (at[above] - at[above - 1])
    return values[above - 1] * (1 - part) + values[above] * part
