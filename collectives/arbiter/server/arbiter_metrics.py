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

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        arbiter = self._arbiter
        found = status.status(arbiter)
        epoch = agreement.newest_epoch(arbiter.controller)
        yield GaugeMetricFamily("presage_inc_epoch", "Newest epoch of decisions", value=epoch)
        yield CounterMetricFamily(
            "presage_inc_changes", "Changes of decisions since the start", value=arbiter.changes
        )
        jobs = GaugeMetricFamily(
            "presage_inc_jobs", "Jobs, by whether they are arbitrated", labels=["arbitrated"]
        )
        members = sum(job.is_member for job in arbiter.jobs.by_name.values())
        jobs.add_metric(["true"], members)
        jobs.add_metric(["false"], len(found.jobs) - members)
        yield jobs
        ranks = sum(job.connected for job in found.jobs)
        yield GaugeMetricFamily("presage_inc_ranks", "Connected ranks", value=ranks)
        slots = GaugeMetricFamily("presage_inc_slots", "Slots of a switch", labels=["switch"])
        up = GaugeMetricFamily("presage_inc_switch_up", "1 if it can be reached", labels=["switch"])
        for switch in found.switches:
            slots.add_metric([switch.name], switch.slots)
            up.add_metric([switch.name], switch.is_reachable)
        yield slots
        yield up
        ways = CounterMetricFamily(
            "presage_inc_allreduces",
            "AllReduces of each job: on the switch, by ring, or by ring after a refusal",
            labels=["job", "way"],
        )
        saved = CounterMetricFamily(
            "presage_inc_saved_seconds", "Predicted time that the switch has saved", labels=["job"]
        )
        for job in found.jobs:
            for way in _WAYS:
                ways.add_metric([job.job, way], getattr(job.counts, way))
            saved.add_metric([job.job], job.counts.saved_s)
        yield ways
        yield saved
