"""What the extender says: by forecast and interference, and nothing without forecasts (A6)."""

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
from presage.schedulers.kubernetes.extender.extender_server import ExtenderServer
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
from presage.schedulers.policies.gang.policy import Gang
from presage.serving.authentication.token_file import TokenFile, add_token
from presage.serving.client.job_features import to_json
from tests.features.examples import features
from tests.schedulers.clusters import GIB
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod, pod_group

V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
SHARED = {**V100, "nvidia.com/gpu.replicas": "4"}


class Told:
    """A job's name says what it takes: its memory in GiB; how slow who becomes is told by name."""

    def __init__(self) -> None:
        self.down = False
        self.slow = {frozenset({"8", "4"}): 1.2, frozenset({"8", "2"}): 1.4, frozenset({"8"}): 3.0}

    def predictions(self, asked):
        if self.down:
            raise ServiceError("localhost:1: no answer")
        seconds = {"v100-16gb": 100.0, "h200": 50.0}
        return [
            RuntimePrediction(seconds[kind], 300, int(job.features.job.name) * GIB)
            if job.features
            else None
            for job, kind in asked
        ]

    def slowdowns(self, asked):
        if self.down:
            raise ServiceError("localhost:1: no answer")
        names = [frozenset(job.features.job.name for job in jobs) for _, jobs in asked]
        return [(self.slow.get(one, 1.0),) * len(jobs)
                for one, (_, jobs) in zip(names, asked, strict=True)]  # fmt: skip


def job(gib: int) -> dict[str, str]:
    """The annotation of one that takes so much memory."""
    of = features(name=str(gib))
    return {JOB_FEATURES: to_json(of)}


class World:
    def __init__(self, server: ApiServer, cache: Cache, told: Told) -> None:
        self.server, self.cache, self.told = server, cache, told
        self.now_s = 1e9
        cluster = LiveCluster(server.client(retries=False), cache)
        self.extender = Extender(cluster, Gang(), lambda: told, clock=lambda: self.now_s)

    def create(self, plural, *things):
        for thing in things:
            self.server.create(plural, thing)
            name = thing["metadata"]["name"]
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

    def args(self, made):
        return FilterArgs(made, dict.fromkeys(self.cache.snapshot().nodes), by_name=True)

    def fits(self, made):
        return sorted(self.extender.filter(self.args(made)).nodes)

    def scores(self, made):
        return {one.host: one.score for one in self.extender.prioritize(self.args(made))}


@contextmanager
def world(*nodes) -> Iterator[World]:
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        for one in nodes:
            server.create("nodes", one)
        with Cache(server.client(retries=False)) as cache:
            yield World(server, cache, Told())


def on(name, where, gib, **options):
    return pod(name, gpus=1, nodeName=where, annotations=job(gib), **options)


def asking(gib=8, **options):
    return {**pod("new", gpus=1, annotations=job(gib), **options)}


def four():
    """Nodes with one device that four pods may share."""
    return [node(name, gpus=4, labels=SHARED) for name in ("a", "b", "c", "d")]


def test_a_pod_passes_where_its_memory_is_left_and_nobody_becomes_too_slow():
    with world(*four()) as one:
        one.create("pods", on("p4", "a", 4), on("p2", "b", 2), on("p8", "c", 8), on("p12", "d", 12))
        assert one.fits(asking()) == ["a", "b"]  # on c both become 3 times as slow, d is full
        why = one.extender.filter(one.args(asking())).failed
        assert sorted(why) == ["c", "d"]
        assert "more than 1.5 times as slow" in why["c"]
        # Those beside whom nobody loses anything are best.
        assert one.scores(asking()) == {"a": 6, "b": 2, "c": 0, "d": 0}
        assert one.scores(asking(1)) == {"a": 10, "b": 10, "c": 10, "d": 10}


def test_the_kind_where_it_is_fastest_is_best():
    kinds = [
        node("old", labels=V100),
        node("new", labels={"nvidia.com/gpu.product": "NVIDIA-H200"}),
    ]
    with world(*kinds) as one:
        assert one.scores(asking()) == {"old": 0, "new": 10}


def test_of_what_nothing_is_foretold_is_given_whole_devices():
    with world(*four()[:2]) as one:
        one.create("pods", on("p4", "a", 4))
        assert one.fits(pod("unknown", gpus=1)) == ["b"]
        assert one.fits(pod("cpus")) == ["a", "b"]


def test_when_the_forecaster_is_down_all_nodes_pass_all_as_good_and_it_says_so(caplog):
    with world(*four()) as one:
        one.create("pods", on("p8", "c", 8))
        one.told.down = True
        assert one.fits(asking()) == ["a", "b", "c", "d"]
        assert set(one.scores(asking()).values()) == {0}
        assert "localhost:1: no answer" in one.extender.status()["forecasts"]
        assert "no forecasts available: all nodes pass" in caplog.text
        one.told.down = False
        one.now_s += 60.0
        assert one.fits(asking()) == ["a", "b", "d"]
        assert one.extender.status()["forecasts"] == "ok"


def test_devices_that_a_gang_keeps_or_was_planned_on_are_not_for_others():
    with world(node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)) as one:
        group = pod_group("train", 3)
        reservation = '{"devices":"a/0,a/1","until":"2040-01-01T00:00:00.000000Z"}'
        group["metadata"]["annotations"] = {RESERVATION: reservation}
        one.create("podgroups", group)
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
            one.create("pods", member)
        assert one.fits(pod("wide", gpus=2)) == ["b"]
        one.create("pods", pod("h0", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "half"}))
        half = pod_group("half", 1)
        uid = one.cache.snapshot().pods["default", "h0"]["metadata"]["uid"]
        half["metadata"]["annotations"] = {PLAN: Plan({uid: "b/1"}).to_json()}
        one.create("podgroups", half)
        assert one.fits(pod("wide", gpus=2)) == []  # its pod is to be released
        one.create("pods", pod("planned", gpus=1, annotations={DEVICES: "b/0"}))
        planned = one.cache.snapshot().pods["default", "planned"]
        assert one.fits(planned) == ["b"]


def test_what_would_help_is_preempted_where_no_gang_falls_apart():
    with world(node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)) as one:
        one.create("podgroups", pod_group("train", 2))
        for i, where in enumerate("ab"):
            one.create(
                "pods", pod(f"m{i}", gpus=1, nodeName=where, labels={POD_GROUP_LABEL: "train"})
            )
            one.create("pods", pod(f"s{i}", gpus=1, nodeName=where))
        uid = {
            name: made["metadata"]["uid"] for (_, name), made in one.cache.snapshot().pods.items()
        }

        def agreed(gpus, **victims):
            asked = {
                n: Victims({uid[name]: None for name in names}) for n, names in victims.items()
            }
            return sorted(one.extender.preempt(PreemptArgs(pod("new", gpus=gpus), asked)))

        assert agreed(1, a=["m0"], b=["s1"]) == ["b"]
        assert agreed(1, a=["m0"]) == ["a"]
        assert agreed(2, a=["s0"], b=["m1", "s1"]) == ["b"]  # one device of a is not enough
        unknown = {"a": Victims({"somebody": None})}
        assert list(one.extender.preempt(PreemptArgs(pod("new", gpus=2), unknown))) == ["a"]


@pytest.mark.parametrize("by_name", [True, False])
def test_a6_kube_scheduler_puts_a_pod_where_the_extender_likes_it_best(by_name, tmp_path):
    token = add_token(tmp_path / "tokens", "kube-scheduler", ["bind"])
    tokens = TokenFile(tmp_path / "tokens")
    with world(*four()) as one, ExtenderServer(one.extender, port=0, tokens=tokens) as http:
        one.create("pods", on("p4", "b", 4), on("p2", "a", 2), on("p8", "c", 8), on("p12", "d", 12))
        verbs = {f"{verb}Verb": verb for verb in ("filter", "prioritize", "bind", "preempt")}
        url = http.url.replace("://", f"://presage:{token}@")
        config = {"urlPrefix": url, "weight": 5, "nodeCacheCapable": by_name, **verbs}
        one.create("pods", asking())
        (bound,) = KubeScheduler(one.server.url, [config]).step()
        assert bound.node == "b"
        made = one.server.get("pods", "new")
        assert made is not None
        assert made["spec"]["nodeName"] == "b"
        assert made["metadata"]["annotations"][DEVICES] == "b/0"


def bind_args(one, name, where):
    uid = one.cache.snapshot().pods["default", name]["metadata"]["uid"]
    return BindArgs(pod_name=name, pod_namespace="default", pod_uid=uid, node=where)


def test_of_two_pods_that_both_fit_the_second_to_be_bound_is_tried_again():
    with world(*four()[:1]) as one:
        one.create("pods", pod("p0", gpus=1, annotations=job(10)))
        one.create("pods", pod("p1", gpus=1, annotations=job(10)))
        for name in ("p0", "p1"):
            assert one.fits(one.cache.snapshot().pods["default", name]) == ["a"]
        assert one.extender.bind(bind_args(one, "p0", "a")) == ""
        assert "no free devices" in one.extender.bind(bind_args(one, "p1", "a"))
        assert one.fits(one.cache.snapshot().pods["default", "p1"]) == []


def test_a_binding_that_is_refused_is_an_error_with_its_reason():
    with world(*four()) as one:
        made = asking()
        one.create("pods", made)
        uid = one.cache.snapshot().pods["default", "new"]["metadata"]["uid"]
        one.server.answer("POST", "binding", 500)
        bind = {"pod_name": "new", "pod_namespace": "default", "pod_uid": uid, "node": "a"}
        assert "500" in one.extender.bind(BindArgs(**bind))
        assert one.extender.bind(BindArgs(**bind)) == ""
        assert "already" in one.extender.bind(BindArgs(**bind))
        assert "not found" in one.extender.bind(BindArgs(**{**bind, "pod_name": "gone"}))


def test_a_pod_that_was_not_bound_where_it_was_noted_goes_elsewhere_if_it_must():
    with world(*four()) as one:
        one.create("pods", asking())
        uid = one.cache.snapshot().pods["default", "new"]["metadata"]["uid"]
        one.server.answer("POST", "binding", 500)
        assert one.extender.bind(BindArgs("new", "default", uid, "a"))
        noted = one.cache.snapshot().pods["default", "new"]
        assert one.fits(noted) == ["a"]
        left = FilterArgs(noted, dict.fromkeys(["b", "c"]), by_name=True)  # a takes it no more
        assert list(one.extender.filter(left).nodes) == ["b", "c"]
        assert {score.score for score in one.extender.prioritize(left)} == {10}
        assert one.extender.bind(BindArgs("new", "default", uid, "b")) == ""
        made = one.server.get("pods", "new")
        assert made is not None
        assert made["metadata"]["annotations"][DEVICES] == "b/0"


def test_nothing_is_kept_beyond_its_time_though_the_gate_is_down():
    with world(node("a", gpus=2, labels=V100), node("b", gpus=2, labels=V100)) as one:
        group = pod_group("train", 3)
        until = '{"devices":"a/0,a/1","until":"2001-09-09T01:47:00Z"}'  # in 20 s
        group["metadata"]["annotations"] = {RESERVATION: until}
        one.create("podgroups", group)
        owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u",
                   "controller": True}]  # fmt: skip
        for i in range(3):
            member = pod(f"m{i}", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "train"})
            member["metadata"]["ownerReferences"] = owners
            one.create("pods", member)
        assert one.fits(asking()) == ["b"]
        one.now_s += 20.0
        assert one.fits(asking()) == ["a", "b"]


def test_a_forecaster_that_was_down_is_asked_again_though_the_clock_was_set_back():
    with world(*four()) as one:
        one.told.down = True
        one.fits(asking())
        one.told.down = False
        one.now_s -= 3600.0
        one.fits(asking())
        assert one.extender.status()["forecasts"] == "ok"
