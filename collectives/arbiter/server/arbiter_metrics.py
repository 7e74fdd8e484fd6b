"""Prometheus metrics of an arbiter, in addition to those of its calls."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from presage.collectives.arbiter import agreement
from presage.collectives.arbiter.arbiter import Arbiter
from presage.collectives.arbiter.server import status

_WAYS = ("inc", "ring", "refused")


class ArbiterCollector(Collector):
    """Metrics that are read from an arbiter when they are scraped."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter

    @staticmethod
    def describe() -> Iterator[Metric]:
        """Yield all metrics without values."""
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        arbiter = self._arbiter
        found = status.status(arbiter)
        families = epoch, changes, jobs, ranks, slots, is_up, allreduces, saved = _families()
        epoch.add_metric([], agreement.newest_epoch(arbiter.controller))
        changes.add_metric([], arbiter.changes)
        members = sum(job.is_member for job in arbiter.jobs.by_name.values())
        jobs.add_metric(["true"], members)
        jobs.add_metric(["false"], len(found.jobs) - members)
        ranks.add_metric([], sum(job.connected for job in found.jobs))
        for switch in found.switches:
            slots.add_metric([switch.name], switch.slots)
            is_up.add_metric([switch.name], switch.is_reachable)
        for job in found.jobs:
            for way in _WAYS:
                allreduces.add_metric([job.job, way], getattr(job.counts, way))
            saved.add_metric([job.job], job.counts.saved_s)
        yield from families


def _families() -> tuple[CounterMetricFamily | GaugeMetricFamily, ...]:
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    return (
        gauge("presage_inc_epoch", "Newest epoch of decisions", labels=[]),
        counter("presage_inc_changes", "Changes of decisions since the start", labels=[]),
        gauge("presage_inc_jobs", "Jobs, by whether they are arbitrated", labels=["arbitrated"]),
        gauge("presage_inc_ranks", "Connected ranks", labels=[]),
        gauge("presage_inc_slots", "Slots of a switch", labels=["switch"]),
        gauge("presage_inc_switch_up", "1 if it can be reached", labels=["switch"]),
        counter(
            "presage_inc_allreduces",
            "AllReduces of each job: on the switch, by ring, or by ring after a refusal",
            labels=["job", "way"],
        ),
        counter(
            "presage_inc_saved_seconds", "Predicted time that the switch has saved", labels=["job"]
        ),
    )
