"""Placement where jobs share devices: what waits otherwise joins running jobs (requirement S4).

Devices are divided as without sharing first. A job that gets none then keeps its devices if the
jobs that got them can share them, or joins running jobs where all of them together do more work
per second. While a latency-sensitive job waits, no share changes and no job joins others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from presage.schedulers.core.action import Action, Preempt, Resize, Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.forecasts import Forecasts
from presage.schedulers.core.state import State
from presage.schedulers.policies.elastic.co_locations import CoLocations, SharingLimits
from presage.schedulers.policies.elastic.contender import Contender
from presage.schedulers.policies.elastic.placement import Placement
from presage.schedulers.policies.elastic.share_actions import Shares, share_actions


class SharedPlacement(Placement):
    """Placement with several jobs on a device; parameters are those of its base class."""

    def __init__(
        self,
        state: State,
        contenders: Sequence[Contender],
        sizes: Sequence[int],
        *,
        hold_s: float,
        gain: float,
        forecasts: Forecasts,
        limits: SharingLimits,
    ) -> None:
        super().__init__(state, contenders, sizes, hold_s=hold_s, gain=gain)
        by_id = {one.job.job_id: one for one in contenders}
        self._co_locations = CoLocations(state, forecasts, self._occupants, by_id, limits)
        self._had = {device: {*state.jobs_on(device)} for one in contenders for device in one.own}

    def actions(self) -> list[Action]:
        """Return the actions, those that free devices or parts of them first."""
        self._place()
        if self._is_blocked(self._partly_free()):
            self._undo_best_effort()
        is_urgent = bool(self._waiting_urgent())
        for one in self._in_order:
            if one.job.job_id in self._evicted and one.is_shareable:
                self._keep(one, is_urgent=is_urgent)
        self._separate_unfit()
        if not is_urgent:
            self._join_others()
        held = [one for one in self._in_order if one.own]
        running = [one for one in held if one.job.job_id not in self._evicted]
        preempts = [Preempt(one.job.job_id) for one in held if one.job.job_id in self._evicted]
        placed = [(one, isinstance(action, Start)) for one, action, _ in self._placed]
        shares = self._shares(is_urgent=is_urgent)
        return [*preempts, *share_actions(running, placed, shares), *self._wakes()]

    def _slowdown(self, one: Contender, devices: Sequence[int]) -> float:
        return self._co_locations.slowdown(one.job.job_id, devices)

    # Urgent jobs ----------------------------------------------------------------------------

    def _partly_free(self) -> int:
        """Return the number of devices with jobs that had less than all of their compute."""
        count = 0
        for device, had in self._had.items():
            there = had.intersection(self._occupants.on(device))
            held = (self._co_locations.before(job_id, device) for job_id in there)
            milli = sum(one.compute_milli for one in held if one is not None)
            count += 0 < milli < FULL_DEVICE_MILLI
        return count

    def _undo_best_effort(self) -> None:
        """Undo the starts and growths of best-effort jobs, the last one first."""
        for one, action, _ in reversed(self._placed):
            if one.job.latency_sensitive:
                continue
            assert isinstance(action, Start | Resize)
            job_id, devices = one.job.job_id, {each.device for each in action.allocations}
            self._occupants.join(job_id, {*one.own} - devices)
            self._occupants.leave(job_id, devices - {*one.own})
        self._placed = [row for row in self._placed if row[0].job.latency_sensitive]

    # Sharing --------------------------------------------------------------------------------

    def _keep(self, one: Contender, *, is_urgent: bool) -> None:
        """Let a job that lost its devices keep some of them, if it can share them."""
        occupants, fewest = self._occupants, one.job.fewest_gpus
        kept = [device for device in one.own if not occupants.on(device)]
        if len(kept) < fewest:
            same = [
                device for device in one.own
                if not is_urgent or {*occupants.on(device)} <= self._had[device]
            ]  # fmt: skip
            found = self._co_locations.joinable(one, same, fewest)
            kept += [device for _, device in found][: fewest - len(kept)]
        if len(kept) >= fewest:
            self._evicted.remove(one.job.job_id)
            occupants.join(one.job.job_id, kept)

    def _separate_unfit(self) -> None:
        """Evict jobs whose memory does not fit any more, since jobs shrank: the last in order."""
        for device in self._occupants.devices():
            while self._occupants.is_shared(device) and not self._is_fit(device):
                there = self._occupants.on(device)
                last = next(one for one in reversed(self._in_order) if one.job.job_id in there)
                self._placed = [row for row in self._placed if row[0] is not last]
                self._evict(replace(last, own=[*self._occupants.devices_of(last.job.job_id)]))

    def _is_fit(self, device: int) -> bool:
        return bool(self._co_locations.shares(device, self._occupants.on(device)))

    def _join_others(self) -> None:
        """Start jobs that would wait on devices of other jobs, at their smallest size."""
        failed = set[object]()
        for one in self._in_order:
            job = one.job
            if one.own or self._occupants.devices_of(job.job_id) or not one.is_shareable:
                continue
            if job.workload_key in failed:
                continue
            devices = self._joined(one)
            if not devices:
                failed.add(job.workload_key)
                continue
            self._occupants.join(job.job_id, devices)
            self._placed.append((one, Start(job.job_id, self._allocations(devices)), 0))

    def _joined(self, one: Contender) -> list[int]:
        """Return the devices on which a job joins others, on one node if possible; [] if none."""
        fewest, node_of = one.job.fewest_gpus, self._cluster.node_of
        for kinds in one.kinds:
            allowed = [
                device
                for device in self._occupants.devices()
                if self._cluster.kind_of(device) in kinds
            ]
            found = [device for _, device in self._co_locations.joinable(one, allowed, fewest)]
            by_node: dict[int, list[int]] = {}
            for device in found:
                by_node.setdefault(node_of[device], []).append(device)
            together = next((each for each in by_node.values() if len(each) >= fewest), found)
            if len(together) >= fewest:
                return together[:fewest]
        return []

    # Shares ---------------------------------------------------------------------------------

    def _shares(self, *, is_urgent: bool) -> Shares:
        """Return what each job has of each of its devices after the decision."""
        found: Shares = {}
        for device in self._occupants.devices():
            there = self._occupants.on(device)
            for job_id, share in zip(there, self._divided(device, is_urgent), strict=True):
                found.setdefault(job_id, {})[device] = share
        return found

    def _divided(self, device: int, is_urgent: bool) -> list[Allocation]:
        """Return the present shares of a device if they will do, or new ones."""
        there = self._occupants.on(device)
        present = [self._co_locations.before(job_id, device) for job_id in there]
        held = [one for one in present if one is not None]
        if len(held) == len(there) and (is_urgent or self._will_do(device, held)):
            return held
        return self._co_locations.shares(device, there)

    def _will_do(self, device: int, held: Sequence[Allocation]) -> bool:
        """Return whether a device has the same jobs, all of it is allocated, and memory fits."""
        there = self._occupants.on(device)
        if self._had.get(device, set()) != {*there}:
            return False
        if len(there) == 1:
            return self._co_locations.shares(device, there) == held
        is_full = sum(one.compute_milli for one in held) == FULL_DEVICE_MILLI
        return is_full and self._co_locations.are_enough(device, there, held)
