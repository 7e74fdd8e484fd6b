"""What a controller counts for Prometheus, beside its calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.journal.records import Record
from presage.schedulers.live.controller.replayed_state import Stage

LOOK_S = 1.0  # from one look to the next, at least
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


class ClusterMetrics:
    """Gauges of jobs and nodes are as of the last look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looked_s = -math.inf
        add: dict[str, Any] = {"registry": registry, "namespace": "presage_cluster"}
        self._jobs = Gauge("jobs", "Jobs that are known, by stage", ["stage"], **add)
        self._late = Gauge(
            "slo_violated_jobs", "Jobs that violate their SLO, or are predicted to", **add
        )
        self._nodes = Gauge(
            "nodes", "Nodes, by whether jobs are assigned to them", ["schedulable"], **add
        )
        self._records = Counter("records", "Records of the journal, by type", ["type"], **add)
        self._decisions = Histogram(
            "decision_seconds",
            "What a decision takes that changes something",
            buckets=_SECONDS,
            **add,
        )

    def count(self, records: Iterable[Record]) -> None:
        """Records that were written."""
        for record in records:
            self._records.labels(type(record).__name__).inc()

    def decided(self, seconds: float) -> None:
        """A decision that something followed from."""
        self._decisions.observe(seconds)

    def look(self, core: Core, now_s: float) -> None:
        """Jobs and nodes as they are, if the last look was long ago."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        for stage in Stage:
            self._jobs.labels(stage.value).set(core.book.stages[stage])
        late = [
            task.slo_violated
            for node, jobs in core.book.at_node.items()
            for job_id in jobs
            if (task := core.nodes[node].tasks.get(job_id)) is not None
        ]
        self._late.set(sum(late))
        up = sum(not core.not_up(name, now_s) for name in core.book.nodes)
        self._nodes.labels("true").set(up)
        self._nodes.labels("false").set(len(core.book.nodes) - up)
