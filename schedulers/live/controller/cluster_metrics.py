"""Prometheus metrics of a controller, in addition to those of its calls."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.members import job_of_task
from presage.schedulers.live.controller.journal.records import Record
from presage.schedulers.live.controller.replayed_state import Stage
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.notifications.event_sender import DELIVERED, DROPPED, FAILED

UPDATE_INTERVAL_S = 1.0  # minimum interval between updates of the gauges
_MAX_UPDATE_INTERVAL_S = 10.0  # also after an update that waited for other threads
_MAX_UPDATING_SHARE = 0.01  # of the time: with 10,000 nodes an update takes 40 ms
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class _NodeUse(NamedTuple):
    """Use of a node's devices by its last reported tasks.

    Attributes
    ----------
    violated : list of (str, int)
        Jobs, and their attempts, that violate their SLO.
    """

    tasks: Mapping[str, pb.Task]
    violated: list[tuple[str, int]]
    allocated_milli: int
    busy_milli: float


class ClusterMetrics:
    """Metrics of jobs, nodes, journal records and decisions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._updated_s, self._took_s = -math.inf, 0.0
        self._uses: dict[str, _NodeUse] = {}
        add: dict[str, Any] = {"registry": registry, "namespace": "presage_cluster"}
        self._jobs = Gauge("jobs", "Jobs, by stage", ["stage"], **add)
        self._slo_violated = Gauge(
            "slo_violated_jobs", "Jobs that violate their SLO, or are predicted to", **add
        )
        self._nodes = Gauge(
            "nodes", "Nodes, by whether jobs are assigned to them", ["schedulable"], **add
        )
        self._withdrawn = Gauge(
            "withdrawn_devices", "Devices that get no jobs, on nodes that are not lost", **add
        )
        self._records = Counter("records", "Records of the journal, by type", ["type"], **add)
        self._decisions = Histogram(
            "decision_seconds",
            "Duration of decisions that changed something",
            buckets=_SECONDS,
            **add,
        )
        self._lost = Gauge(
            "lost_nodes", "Nodes that do not report any more and have not been removed", **add
        )
        self._devices = Gauge("devices", "Devices of nodes that are not lost", **add)
        self._allocated = Gauge(
            "allocated_devices", "Devices that running tasks are allocated, in whole devices", **add
        )
        self._busy = Gauge(
            "busy_devices", "Recent use of devices by running tasks, in whole devices", **add
        )
        self._events = Counter("webhook_events", "Events for the webhook", ["result"], **add)
        for result in (DELIVERED, FAILED, DROPPED):
            self._events.labels(result)

    def count_event(self, result: str) -> None:
        """Count an event for the webhook, by the results of ``EventSender``."""
        self._events.labels(result).inc()

    def count(self, records: Iterable[Record]) -> None:
        """Count records that were written."""
        for record in records:
            self._records.labels(type(record).__name__).inc()

    def observe_decision(self, seconds: float) -> None:
        """Record the duration of a decision that changed something."""
        self._decisions.observe(seconds)

    def update(self, core: Core, now_s: float) -> None:
        """Update the gauges, at most once per ``UPDATE_INTERVAL_S``, and in a part of the time."""
        interval_s = max(UPDATE_INTERVAL_S, self._took_s / _MAX_UPDATING_SHARE)
        if now_s - self._updated_s < min(interval_s, _MAX_UPDATE_INTERVAL_S):
            return
        began_s = time.monotonic()
        self._update(core)
        self._updated_s, self._took_s = now_s, time.monotonic() - began_s

    def _update(self, core: Core) -> None:
        uses = self._use_of_nodes(core)
        for stage in Stage:
            self._jobs.labels(stage.value).set(core.state.stages[stage])
        violated = (uses[name].violated for name in core.state.at_node if name in uses)
        self._slo_violated.set(len(set[tuple[str, int]]().union(*violated)))
        nodes = [node for node in core.state.nodes.values() if not node.lost]
        self._lost.set(len(core.state.nodes) - len(nodes))
        self._devices.set(sum(len(node.devices) for node in nodes))
        there = [uses[node.name] for node in nodes]
        self._allocated.set(sum(one.allocated_milli for one in there) / FULL_DEVICE_MILLI)
        self._busy.set(sum(one.busy_milli for one in there) / FULL_DEVICE_MILLI)
        gone = {one for one, health in core.state.health.items() if health.withdrawal_reason}
        self._withdrawn.set(
            sum(one in gone for node in nodes for one in node.history_ids) if gone else 0
        )
        up = core.current_view.available_nodes if core.current_view is not None else 0
        self._nodes.labels("true").set(up)
        self._nodes.labels("false").set(len(core.state.nodes) - up)

    def _use_of_nodes(self, core: Core) -> dict[str, _NodeUse]:
        """Return the use of each node's devices; only nodes with new reports are computed."""
        before, self._uses = self._uses, {}
        for name, reported in core.nodes.items():
            use = before.get(name)
            if use is None or use.tasks is not reported.tasks:
                use = _node_use(reported.tasks)
            self._uses[name] = use
        return self._uses


def _node_use(tasks: Mapping[str, pb.Task]) -> _NodeUse:
    running = [task for task in tasks.values() if task.phase == pb.TASK_RUNNING]
    return _NodeUse(
        tasks,
        [
            (job_of_task(task.job_id)[0], task.attempt)
            for task in tasks.values()
            if task.slo_violated
        ],
        sum(one.compute_milli for task in running for one in task.allocations),
        # A task reports the mean over its devices.
        sum(task.usage_milli * len(task.allocations) for task in running),
    )
