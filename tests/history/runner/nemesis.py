"""The nemesis: draws faults from a seed, begins them, and takes them back, some at a time."""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.history.record import Recorder
from tests.history.runner.faults import Fault, Faults, Undo
from tests.history.runner.rig import CONTROLLER, Rig
from tests.support.waiting import is_true_within

_LOOK_S = 0.05
_AGAIN_S = 0.5  # until a component that ended by itself is started, or an undo tried again


class _Due(NamedTuple):
    at_s: float
    number: int
    kind: str
    slot: str
    undo: Undo


class Nemesis:
    """Injects faults; a seed gives kinds, targets and durations, the machine the moments.

    Attributes
    ----------
    begun : int
        Faults so far, each counted once.
    """

    def __init__(self, rig: Rig, faults: Faults, recorder: Recorder, draw: random.Random) -> None:
        self._rig, self._faults, self._recorder, self._draw = rig, faults, recorder, draw
        self._due: list[_Due] = []
        self._restarts: dict[str, float] = {}
        self._number = self.begun = 0

    def run(self, count: int, gap_s: float, progress: Callable[[int], None]) -> None:
        """Begin so many faults, on average ``gap_s`` after one another."""
        kinds, weights = zip(*Faults.KINDS.items(), strict=True)
        next_s = time.monotonic()
        while self.begun < count:
            self.look()
            if time.monotonic() < next_s:
                time.sleep(_LOOK_S)
                continue
            if self._begin(self._draw.choices(kinds, weights)[0]):
                next_s = time.monotonic() + self._draw.expovariate(1.0 / gap_s)
                progress(self.begun)

    def look(self, *, all_of_them: bool = False) -> None:
        """Take back what is due, or everything, and start what ended by itself."""
        now_s = time.monotonic()
        while self._due and (all_of_them or self._due[0].at_s <= now_s):
            self._undo(heapq.heappop(self._due))
        for name, status, said in self._rig.ended_by_itself():
            self._recorder.write("note", "nemesis", "ended by itself", [name, status, said])
            if name == CONTROLLER or name in self._rig.nodes:
                self._restarts[name] = now_s + _AGAIN_S
        for name, at_s in tuple(self._restarts.items()):
            if at_s <= now_s or all_of_them:
                del self._restarts[name]
                if self._rig.pid(name) is None:
                    self._rig.start(name)

    def heal(self, within_s: float) -> bool:
        """Take everything back; whether that could be done in time."""

        def is_healed() -> bool:
            if self._due:
                self.look(all_of_them=True)
            return not self._due

        return is_true_within(is_healed, within_s, pause_s=_LOOK_S)

    def _begin(self, kind: str) -> bool:
        begun = self._faults.begin(kind)
        if begun is None:
            return False
        slot, fault = begun
        self.begun += 1
        self._recorder.write("fault", "nemesis", kind, fault.said)
        if fault.undo is not None:
            self._schedule(kind, slot, fault)
        return True

    def _schedule(self, kind: str, slot: str, fault: Fault) -> None:
        assert fault.undo is not None
        self._number += 1
        at_s = time.monotonic() + fault.lasts_s
        heapq.heappush(self._due, _Due(at_s, self._number, kind, slot, fault.undo))

    def _undo(self, due: _Due) -> None:
        if due.undo() is False:
            heapq.heappush(self._due, due._replace(at_s=time.monotonic() + _AGAIN_S))
            if due.at_s <= time.monotonic():
                time.sleep(_LOOK_S)
            return
        self._faults.taken.discard(due.slot)
        self._recorder.write("heal", "nemesis", due.kind, due.slot)
