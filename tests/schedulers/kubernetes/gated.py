"""Cluster with a gate, whose components act only when a test calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from presage.schedulers.core.failures.hazards import HazardForecaster
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.kubernetes.gate.gang_gate import Gate
from presage.schedulers.kubernetes.gate.gang_writes import Step
from presage.schedulers.kubernetes.gate.writer import Writer
from presage.schedulers.kubernetes.gate.writes import EmitEvent
from presage.schedulers.kubernetes.kubernetes_names import GATE, POD_GROUP_LABEL
from presage.schedulers.kubernetes.snapshot import Snapshot
from presage.schedulers.policies.gang.gang_policy import Gang
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.api_server.statuses import Json
from tests.schedulers.kubernetes.job_controller import JobController
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, pod, pod_group


class GatedCluster:
    """API server, kube-scheduler, Job controller and gate, with a manual clock."""

    def __init__(self, server: ApiServer, now_s: list[float], **options: Any) -> None:
        self.server, self._now_s = server, now_s
        self.scheduler = KubeScheduler(server.url)
        self.jobs = JobController(server)
        self.policy = options.pop("policy", Gang())
        self._forecaster: Callable[[], Forecaster] = options.pop("forecaster", NoForecasts)
        self._hazards: HazardForecaster | None = options.pop("hazards", None)
        self.writer = Writer(server.client(retries=False), lambda kind, written: None)
        self.restart()

    def restart(self) -> None:
        """Replace the gate by a new one, as after a restart."""
        self.gate = Gate(self.policy, self._forecaster, hazards=self._hazards)

    @property
    def now_s(self) -> float:
        return self._now_s[0]

    def advance(self, seconds: float) -> None:
        self._now_s[0] += seconds

    def create_gang(self, name: str, pods: int, min_member: int = 0, **options: Any) -> list[str]:
        """Create a PodGroup and gated pods of a Job; return the names of the pods."""
        group = {k: options.pop(k) for k in ("scheduleTimeoutSeconds",) if k in options}
        annotations = options.pop("group_annotations", {})
        manifest = pod_group(name, min_member or pods, **group)
        manifest["metadata"]["annotations"] = annotations
        self.server.create("podgroups", manifest)
        options = {"gpus": 1, "gates": [GATE], "labels": {POD_GROUP_LABEL: name}, **options}
        return self.jobs.create_pods(name, [pod("", **options) for _ in range(pods)])

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the API server."""
        server = self.server

        def named(plural: str) -> dict[tuple[str, str], Json]:
            return {
                (one["metadata"]["namespace"], one["metadata"]["name"]): one
                for one in server.all(plural)
            }

        nodes = {one["metadata"]["name"]: one for one in server.all("nodes")}
        return Snapshot(server.version, nodes, named("pods"), named("podgroups"))

    def step(self) -> Step:
        """Return the next step of the gate."""
        return self.gate.step(self.snapshot(), self.now_s)

    def write(self, limit: int = 10_000) -> int:
        """Perform up to ``limit`` writes of the gate; return their number."""
        count = 0
        while count < limit:
            step = self.step()
            work = [write for write in step.writes if not isinstance(write, EmitEvent)]
            for write in step.writes:
                if isinstance(write, EmitEvent):
                    self.writer.write(write)
                elif count < limit:
                    self.writer.write(write)
                    count += 1
            if not work:
                break
        return count

    def settle(self) -> None:
        """Run all components until nothing changes."""
        while True:
            before = self.server.version
            self.write()
            self.scheduler.step()
            for one in self.server.all("pods"):
                metadata = one["metadata"]
                if "deletionTimestamp" in metadata and one["spec"].get("nodeName"):
                    self.server.finish(metadata["name"], metadata["namespace"])
            self.jobs.step()
            if self.server.version == before:
                return

    def bound_nodes(self, name: str) -> list[str]:
        """Return the nodes of a gang's bound pods, sorted."""
        pods = self.gang_pods(name)
        return sorted(one["spec"]["nodeName"] for one in pods if one["spec"].get("nodeName"))

    def gang_pods(self, name: str) -> list[Json]:
        """Return the pods of a gang."""
        return [
            one
            for one in self.server.all("pods")
            if (one["metadata"].get("labels") or {}).get(POD_GROUP_LABEL) == name
        ]

    def events(self, reason: str) -> list[str]:
        """Return the messages of events with a reason."""
        return [one["message"] for one in self.server.all("events") if one["reason"] == reason]


@contextmanager
def gated_cluster(*nodes: Json, **options: Any) -> Iterator[GatedCluster]:
    """Yield a cluster with these nodes; its clock starts in 2026."""
    now_s = [datetime(2026, 1, 1, tzinfo=UTC).timestamp()]
    with ApiServer(clock=lambda: datetime.fromtimestamp(now_s[0], UTC)) as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        for one in nodes:
            server.create("nodes", one)
        yield GatedCluster(server, now_s, **options)
