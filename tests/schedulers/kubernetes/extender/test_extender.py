"""The extender: filtering and scoring by forecasts and interference (requirement A6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.errors import ServiceError
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.extender.extender import Extender
from presage.schedulers.kubernetes.extender.extender_server import STATUS_FIELDS, ExtenderServer
from presage.schedulers.kubernetes.extender.extender_types import (
    BindArgs,
    FilterArgs,
    PreemptArgs,
    Victims,
)
from presage.schedulers.kubernetes.extender.live_cluster import LiveCluster
from presage.schedulers.kubernetes.gate.annotations import Plan
from presage.schedulers.kubernetes.kubernetes_names import (
    DEVICES,
    GATE,
    JOB_FEATURES,
    PLAN,
    POD_GROUP_LABEL,
    RESERVATION,
)
from presage.schedulers.policies.gang.gang_policy import Gang
from presage.serving.authentication.token_file import TokenFile, add_token
from presage.serving.client.job_features import to_json
from tests.features.examples import features
from tests.schedulers.clusters import GIB
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod, pod_group

V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
SHARED = {**V100, "nvidia.com/gpu.replicas": "4"}


class FakeForecaster:
    """Forecaster in which a job's name is its memory in GiB, and slowdowns depend on names."""

    def __init__(self) -> None:
        self.down = False
        self.slow = {frozenset({"8", "4"}): 1.2, frozenset({"8", "2"}): 1.4, frozenset({"8"}): 3.0}

    def predictions(self, requests):
        if self.down:
            raise ServiceError("localhost:1: no answer")
        seconds = {"v100-16gb": 100.0, "h200": 50.0}
        return [
            RuntimePrediction(seconds[kind], 300, int(job.features.job.name) * GIB)
            if job.features
            else None
            for job, kind in requests
        ]

    def slowdowns(self, requests):
        if self.down:
            raise ServiceError("localhost:1: no answer")
        names = [frozenset(job.features.job.name for job in jobs) for _, jobs in requests]
        return [(self.slow.get(one, 1.0),) * len(jobs)
                for one, (_, jobs) in zip(names, requests, strict=True)]  # fmt: skip


def job_annotation(gib: int) -> dict[str, str]:
    """Return the annotation of a job with this memory."""
    return {JOB_FEATURES: to_json(features(name=str(gib)))}


class ExtenderCluster:
    def __init__(self, server: ApiServer, cache: Cache, forecaster: FakeForecaster) -> None:
        self.server, self.cache, self.forecaster = server, cache, forecaster
        self.now_s = 1e9
        cluster = LiveCluster(server.client(retries=False), cache)
        self.extender = Extender(cluster, Gang(), lambda: forecaster, clock=lambda: self.now_s)

    def create(self, plural, *objects):
        for obj in objects:
            self.server.create(plural, obj)
            name = obj["metadata"]["name"]
            version = 0
            while not self._known(plural, name):
                version = self.cache.snapshot().version
                if not self._known(plural, name):
                    assert self.cache.wait(version, 5.0)

    def _known(self, plural, name):
        snapshot = self.cache.snapshot()
        if plural == "podgroups":
            return ("default", name) in snapshot.pod_groups
        return ("default", name) in snapshot.pods

    def args(self, created):
        return FilterArgs(created, dict.fromkeys(self.cache.snapshot().nodes), by_name=True)

    def fitting_nodes(self, created):
        return sorted(self.extender.filter(self.args(created)).nodes)

    def scores(self, created):
        return {one.host: one.score for one in self.extender.prioritize(self.args(created))}


@contextmanager
def extender_cluster(*nodes) -> Iterator[ExtenderCluster]:
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        for one in nodes:
            server.create("nodes", one)
        with Cache(server.client(retries=False)) as cache:
            yield ExtenderCluster(server, cache, FakeForecaster())


def bound_pod(name, node_name, gib, **options):
    return pod(name, gpus=1, nodeName=node_name, annotations=job_annotation(gib), **options)


def new_pod(gib=8, **options):
    return {**pod("new", gpus=1, annotations=job_annotation(gib), **options)}


def four_shared_nodes():
    """Return four nodes with one device that four pods may share."""
    return [node(name, gpus=4, labels=SHARED) for name in ("a", "b", "c", "d")]


def test_a_node_passes_with_enough_memory_and_acceptable_slowdowns():
    with extender_cluster(*four_shared_nodes()) as cluster:
        cluster.create(
            "pods",
            bound_pod("p4", "a", 4),
            bound_pod("p2", "b", 2),
            bound_pod("p8", "c", 8),
            bound_pod("p12", "d", 12),
        )
        assert cluster.fitting_nodes(new_pod()) == [
            "a",
            "b",
        ]  # on c both would be 3 times as slow, d is full
        failed = cluster.extender.filter(cluster.args(new_pod())).failed
        assert sorted(failed) == ["c", "d"]
        assert "more than 1.5 times as slow" in failed["c"]
        # Scores are best where no job is slowed down.
        assert cluster.scores(new_pod()) == {"a": 6, "b": 2, "c": 0, "d": 0}
        assert cluster.scores(new_pod(1)) == {"a": 10, "b": 10, "c": 10, "d": 10}


def test_the_fastest_device_kind_scores_best():
    kinds = [
        node("old", labels=V100),
        node("new", labels={"nvidia.com/gpu.product": "NVIDIA-H200"}),
    ]
    with extender_cluster(*kinds) as cluster:
        assert cluster.scores(new_pod()) == {"old": 0, "new": 10}


def test_pods_without_forecasts_get_exclusive_devices():
    with extender_cluster(*four_shared_nodes()[:2]) as cluster:
        cluster.create("pods", bound_pod("p4", "a", 4))
        assert cluster.fitting_nodes(pod("unknown", gpus=1)) == ["b"]
        assert cluster.fitting_nodes(pod("cpus")) == ["a", "b"]


def test_without_a_forecaster_all_nodes_pass_with_equal_scores_and_a_warning(caplog):
    with extender_cluster(*four_shared_nodes()) as cluster:
        cluster.create("pods", bound_pod("p8", "c", 8))
        cluster.forecaster.down = True
        assert cluster.fitting_nodes(new_pod()) == ["a", "b", "c", "d"]
        assert set(cluster.scores(new_pod()).values()) == {0}
        assert "localhost:1: no answer" in cluster.extender.status()["forecasts"]
        assert "no forecasts available: all nodes pass" in caplog.text
        cluster.forecaster.down = False
        cluster.now_s += 60.0
        assert cluster.fitting_nodes(new_pod()) == ["a", "b", "d"]
        status = cluster.extender.status()
        assert status["forecasts"] == "ok"
        assert [*status, "failed_logins"] == list(STATUS_FIELDS)


def test_reserved_and_planned_devices_are_not_free_for_other_pods():
    with extender_cluster(
        node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)
    ) as cluster:
        group = pod_group("train", 3)
        reservation = '{"devices":"a/0,a/1","until":"2040-01-01T00:00:00.000000Z"}'
        group["metadata"]["annotations"] = {RESERVATION: reservation}
        cluster.create("podgroups", group)
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "j",
            "uid": "u",
            "controller": True,
        }
        for i in range(3):
            member = pod(f"m{i}", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "train"})
            member["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
            cluster.create("pods", member)
        assert cluster.fitting_nodes(pod("wide", gpus=2)) == ["b"]
        cluster.create("pods", pod("h0", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "half"}))
        half = pod_group("half", 1)
        uid = cluster.cache.snapshot().pods["default", "h0"]["metadata"]["uid"]
        half["metadata"]["annotations"] = {PLAN: Plan({uid: "b/1"}).to_json()}
        cluster.create("podgroups", half)
        assert cluster.fitting_nodes(pod("wide", gpus=2)) == []  # its pod is to be released
        cluster.create("pods", pod("planned", gpus=1, annotations={DEVICES: "b/0"}))
        planned = cluster.cache.snapshot().pods["default", "planned"]
        assert cluster.fitting_nodes(planned) == ["b"]


def test_preemption_prefers_nodes_where_no_gang_loses_its_quorum():
    with extender_cluster(
        node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)
    ) as cluster:
        cluster.create("podgroups", pod_group("train", 2))
        for i, node_name in enumerate("ab"):
            cluster.create(
                "pods", pod(f"m{i}", gpus=1, nodeName=node_name, labels={POD_GROUP_LABEL: "train"})
            )
            cluster.create("pods", pod(f"s{i}", gpus=1, nodeName=node_name))
        uid = {
            name: created["metadata"]["uid"]
            for (_, name), created in cluster.cache.snapshot().pods.items()
        }

        def preemptable(gpus, **victims):
            candidates = {
                n: Victims({uid[name]: None for name in names}) for n, names in victims.items()
            }
            return sorted(cluster.extender.preempt(PreemptArgs(pod("new", gpus=gpus), candidates)))

        assert preemptable(1, a=["m0"], b=["s1"]) == ["b"]
        assert preemptable(1, a=["m0"]) == ["a"]
        assert preemptable(2, a=["s0"], b=["m1", "s1"]) == ["b"]  # one device of a is not enough
        unknown = {"a": Victims({"unknown": None})}
        assert list(cluster.extender.preempt(PreemptArgs(pod("new", gpus=2), unknown))) == ["a"]


@pytest.mark.parametrize("by_name", [True, False])
def test_a6_kube_scheduler_binds_to_the_node_with_the_best_score(by_name, tmp_path):
    token = add_token(tmp_path / "tokens", "kube-scheduler", ["bind"])
    tokens = TokenFile(tmp_path / "tokens")
    with (
        extender_cluster(*four_shared_nodes()) as cluster,
        ExtenderServer(cluster.extender, port=0, tokens=tokens) as http,
    ):
        cluster.create(
            "pods",
            bound_pod("p4", "b", 4),
            bound_pod("p2", "a", 2),
            bound_pod("p8", "c", 8),
            bound_pod("p12", "d", 12),
        )
        verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
        url = http.url.replace("://", f"://presage:{token}@")
        config = {"urlPrefix": url, "weight": 5, "nodeCacheCapable": by_name, **verbs}
        cluster.create("pods", new_pod())
        (bound,) = KubeScheduler(cluster.server.url, [config]).step()
        assert bound.node == "b"
        created = cluster.server.get("pods", "new")
        assert created is not None
        assert created["spec"]["nodeName"] == "b"
        assert created["metadata"]["annotations"][DEVICES] == "b/0"


def bind_args(cluster, name, node_name):
    uid = cluster.cache.snapshot().pods["default", name]["metadata"]["uid"]
    return BindArgs(pod_name=name, pod_namespace="default", pod_uid=uid, node=node_name)


def test_binding_fails_when_another_pod_took_the_devices():
    with extender_cluster(*four_shared_nodes()[:1]) as cluster:
        cluster.create("pods", pod("p0", gpus=1, annotations=job_annotation(10)))
        cluster.create("pods", pod("p1", gpus=1, annotations=job_annotation(10)))
        for name in ("p0", "p1"):
            assert cluster.fitting_nodes(cluster.cache.snapshot().pods["default", name]) == ["a"]
        assert cluster.extender.bind(bind_args(cluster, "p0", "a")) == ""
        assert "no free devices" in cluster.extender.bind(bind_args(cluster, "p1", "a"))
        assert cluster.fitting_nodes(cluster.cache.snapshot().pods["default", "p1"]) == []


def test_a_failed_binding_returns_its_reason():
    with extender_cluster(*four_shared_nodes()) as cluster:
        created = new_pod()
        cluster.create("pods", created)
        uid = cluster.cache.snapshot().pods["default", "new"]["metadata"]["uid"]
        cluster.server.fail_requests("POST", "binding", 500)
        bind = {"pod_name": "new", "pod_namespace": "default", "pod_uid": uid, "node": "a"}
        assert "500" in cluster.extender.bind(BindArgs(**bind))
        assert cluster.extender.bind(BindArgs(**bind)) == ""
        assert "already" in cluster.extender.bind(BindArgs(**bind))
        assert "not found" in cluster.extender.bind(BindArgs(**{**bind, "pod_name": "gone"}))


def test_a_pod_can_move_to_another_node_after_a_failed_binding():
    with extender_cluster(*four_shared_nodes()) as cluster:
        cluster.create("pods", new_pod())
        uid = cluster.cache.snapshot().pods["default", "new"]["metadata"]["uid"]
        cluster.server.fail_requests("POST", "binding", 500)
        assert cluster.extender.bind(BindArgs("new", "default", uid, "a"))
        annotated = cluster.cache.snapshot().pods["default", "new"]
        assert cluster.fitting_nodes(annotated) == ["a"]
        left = FilterArgs(
            annotated, dict.fromkeys(["b", "c"]), by_name=True
        )  # a is no longer a candidate
        assert list(cluster.extender.filter(left).nodes) == ["b", "c"]
        assert {score.score for score in cluster.extender.prioritize(left)} == {10}
        assert cluster.extender.bind(BindArgs("new", "default", uid, "b")) == ""
        created = cluster.server.get("pods", "new")
        assert created is not None
        assert created["metadata"]["annotations"][DEVICES] == "b/0"


def test_reservations_expire_even_if_the_gate_is_down():
    with extender_cluster(
        node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)
    ) as cluster:
        group = pod_group("train", 3)
        until = '{"devices":"a/0,a/1","until":"2001-09-09T01:47:00Z"}'  # in 20 s
        group["metadata"]["annotations"] = {RESERVATION: until}
        cluster.create("podgroups", group)
        owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
                   "controller": True}]  # fmt: skip
        for i in range(3):
            member = pod(f"m{i}", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "train"})
            member["metadata"]["ownerReferences"] = owners
            cluster.create("pods", member)
        assert cluster.fitting_nodes(new_pod()) == ["b"]
        cluster.now_s += 20.0
        assert cluster.fitting_nodes(new_pod()) == ["a", "b"]


def test_a_forecaster_is_retried_even_if_the_clock_was_set_back():
    with extender_cluster(*four_shared_nodes()) as cluster:
        cluster.forecaster.down = True
        cluster.fitting_nodes(new_pod())
        cluster.forecaster.down = False
        cluster.now_s -= 3600.0
        cluster.fitting_nodes(new_pod())
        assert cluster.extender.status()["forecasts"] == "ok"
