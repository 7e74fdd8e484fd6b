"""Prometheus metrics of a controller, in addition to those of its calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.devices.withdrawal import withdrawn_devices
from presage.schedulers.live.controller.elastic.members import job_of_task
from presage.schedulers.live.controller.journal.records import Record
from presage.schedulers.live.controller.replayed_state import Stage

UPDATE_INTERVAL_S = 1.0  # minimum interval between updates of the gauges
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class ClusterMetrics:
    """Metrics of jobs, nodes, journal records and decisions."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._updated_s = -math.inf
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

    def count(self, records: Iterable[Record]) -> None:
        """Count records that were written."""
        for record in records:
            self._records.labels(type(record).__name__).inc()

    def observe_decision(self, seconds: float) -> None:
        """Record the duration of a decision that changed something."""
        self._decisions.observe(seconds)

    def update(self, core: Core, now_s: float) -> None:
        """Update the gauges, at most once per ``UPDATE_INTERVAL_S``."""
        if now_s - self._updated_s < UPDATE_INTERVAL_S:
            return
        self._updated_s = now_s
        for stage in Stage:
            self._jobs.labels(stage.value).set(core.state.stages[stage])
        violated = {
            (job_of_task(task.job_id)[0], task.attempt)
            for node in core.state.at_node
            for task in core.nodes[node].tasks.values()
            if task.slo_violated
        }
        self._slo_violated.set(len(violated))
        nodes = [node for node in core.state.nodes.values() if not node.lost]
        self._withdrawn.set(sum(len(withdrawn_devices(core.state, node)) for node in nodes))
        up = sum(not core.unavailable_reason(name, now_s) for name in core.state.nodes)
        self._nodes.labels("true").set(up)
        self._nodes.labels("false").set(len(core.state.nodes) - up)
