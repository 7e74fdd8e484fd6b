"""The fake kube-scheduler schedules and calls extenders like the real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.kube_scheduler.extender import Extender
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import node, node_affinity, pod
from tests.support.waiting import wait_until

Responses = dict[str, Callable[[dict[str, Any]], Any]]


class MinuteClock:
    """Clock that advances by a minute with every call."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(minutes=1)
        return self._now


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer(clock=MinuteClock()) as server:
        server.create("priorityclasses", {"metadata": {"name": "urgent"}, "value": 1000})
        server.create("priorityclasses", {"metadata": {"name": "usual"}, "value": 10})
        yield server


@contextmanager
def extender(responses: Responses) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Yield URL and recorded calls (path, body) of a fake extender; int responses are statuses."""
    calls = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append((self.path, body))
            response = responses[self.path.rpartition("/")[2]](body)
            self.send_response(response if isinstance(response, int) else 200)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_address[1]}/presage", calls
        finally:
            http.shutdown()
            thread.join()


def bindings(scheduler: KubeScheduler) -> dict[str, str]:
    return {bound.pod: bound.node for bound in scheduler.step()}


def condition(server: ApiServer, name: str) -> dict[str, Any]:
    found = server.get("pods", name)
    assert found is not None
    return next(c for c in found["status"]["conditions"] if c["type"] == "PodScheduled")


def test_pods_are_bound_by_priority_and_age_while_there_is_capacity(server):
    server.create("nodes", node("n1", gpus=8))
    server.create("pods", pod("young", gpus=4, priorityClassName="usual"))
    server.create("pods", pod("gated", gpus=4, gates=["a.b/c"], priorityClassName="urgent"))
    server.create("pods", pod("younger", gpus=4, priorityClassName="usual"))
    server.create("pods", pod("urgent", gpus=4, priorityClassName="urgent"))
    server.create("pods", pod("others", gpus=4, schedulerName="another"))
    scheduler = KubeScheduler(server.url)

    assert [bound.pod for bound in scheduler.step()] == ["urgent", "young"]
    assert condition(server, "urgent")["status"] == "True"
    pending = condition(server, "younger")
    assert (pending["status"], pending["reason"]) == ("False", "Unschedulable")
    assert pending["message"] == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    assert condition(server, "gated")["reason"] == "SchedulingGated"
    version = server.version
    assert scheduler.step() == []
    assert server.version == version, "an unchanged reason is not written again"
    server.set_phase("urgent", "Succeeded")
    assert bindings(scheduler) == {"younger": "n1"}


@pytest.mark.parametrize(
    ("spec", "node_name"),
    [
        ({}, "a"),
        ({"nodeSelector": {"kind": "h100"}}, "b"),
        ({"nodeSelector": {"kind": "v100"}}, None),
        ({"cpus": "65"}, None),
        ({"cpus": "500m", "memory": "600Gi"}, "d"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}], "gpus": 16}, "c"),
        ({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"cordoned": "y"}}, "e"),
        ({"tolerations": [{"key": "gpu", "value": "no"}], "gpus": 16}, None),
    ],
)
def test_a_pod_is_bound_by_its_requests_selector_and_tolerations(server, spec, node_name):
    server.create("nodes", node("a"))
    server.create("nodes", node("b", labels={"kind": "h100"}))
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    server.create("nodes", node("c", gpus=16, taints=[taint]))
    server.create("nodes", node("d", memory="1Ti"))
    server.create("nodes", node("e", labels={"cordoned": "y"}, unschedulable=True))
    server.create("pods", pod("p", **spec))
    assert bindings(KubeScheduler(server.url)) == ({"p": node_name} if node_name else {})


@pytest.mark.parametrize(
    ("terms", "node_name"),
    [
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}], "b"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}], "b"),
        ([{"matchExpressions": [{"key": "slot", "operator": "Gt", "values": ["2"]}]}], "c"),
        ([{"matchExpressions": [{"key": "slot", "operator": "DoesNotExist"}]}], "a"),
        ([{"matchExpressions": [{"key": "slot", "operator": "In", "values": ["2", "3"]}]}], "b"),
        ([{"matchExpressions": [{"key": "slot", "operator": "NotIn", "values": ["2"]}]}], "a"),
        ([{}, {"matchExpressions": [{"key": "slot", "operator": "Exists"}]}], "b"),
        ([{}], None),
    ],
)
def test_one_affinity_term_must_match_completely(server, terms, node_name):
    for name, labels in (("a", {}), ("b", {"slot": "2"}), ("c", {"slot": "3"})):
        server.create("nodes", node(name, labels=labels))
    server.create("pods", pod("p", affinity=node_affinity(*terms)))
    assert bindings(KubeScheduler(server.url)) == ({"p": node_name} if node_name else {})


def test_extender_requests_have_go_s_field_names(server):
    for name in ("a", "b", "c"):
        server.create("nodes", node(name))
    server.create("pods", pod("p"))
    responses: Responses = {
        "filter": lambda body: {"nodenames": ["b", "c"], "failedNodes": {"a": "too far"}},
        "prioritize": lambda body: [{"host": "b", "score": 1}, {"Host": "c", "Score": 9}],
    }
    with extender(responses) as (url, calls):
        configuration = f"""
            apiVersion: kubescheduler.config.k8s.io/v1
            kind: KubeSchedulerConfiguration
            extenders:
              - urlPrefix: {url}
                filterVerb: filter
                prioritizeVerb: prioritize
                weight: 5
                nodeCacheCapable: true
                httpTimeout: 2s
            """
        scheduler = KubeScheduler.configured(server.url, yaml.safe_load(configuration))
        assert bindings(scheduler) == {"p": "c"}
    assert [path for path, _ in calls] == ["/presage/filter", "/presage/prioritize"]
    first, second = (body for _, body in calls)
    assert first.keys() == {"Pod", "Nodes", "NodeNames"}
    assert (first["Nodes"], first["NodeNames"]) == (None, ["a", "b", "c"])
    assert second["NodeNames"] == ["b", "c"]
    assert first["Pod"]["metadata"]["name"] == "p"
    assert "kind" not in first["Pod"]


def test_extender_scores_are_weighted_and_added(server):
    server.create("nodes", node("a"))
    server.create("nodes", node("b"))
    server.create("pods", pod("p"))
    scores: Responses = {
        "mild": lambda body: [{"Host": "a", "Score": 10}],
        "strong": lambda body: [{"Host": "b", "Score": 4}],
        "broken": lambda body: [{"Host": "a", "Score": 9.5}],
    }
    with extender(scores) as (url, _):
        extenders = [
            {"urlPrefix": url, "prioritizeVerb": verb, "weight": weight}
            for verb, weight in (("mild", 1), ("strong", 3), ("broken", 100))
        ]
        assert bindings(KubeScheduler(server.url, extenders)) == {"p": "b"}


def test_extender_scores_are_scaled():
    with extender({"prioritize": lambda body: [{"Host": "a", "Score": 9}]}) as (url, _):
        config = {"urlPrefix": url, "prioritizeVerb": "prioritize", "weight": 5}
        scores = Extender(config).scores(pod("p"), [node("a")])
    assert scores == {"a": 9 * 5 * (100 // 10)}


def test_a_response_with_names_is_ignored_for_a_request_with_nodes(server):
    server.create("nodes", node("a"))
    server.create("pods", pod("p"))
    with extender({"filter": lambda body: {"NodeNames": ["a"]}}) as (url, _):
        config = {"urlPrefix": url, "filterVerb": "filter"}
        assert bindings(KubeScheduler(server.url, [config])) == {}


def test_an_extender_without_a_cache_gets_complete_nodes_and_can_bind(server):
    server.create("nodes", node("a"))
    server.create("pods", pod("p"))
    responses: Responses = {
        "filter": lambda body: {"Nodes": body["Nodes"]},
        "bind": lambda body: {"Error": "" if body["Node"] == "a" else "no"},
    }
    with extender(responses) as (url, calls):
        verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
        config = {"urlPrefix": url + "/", "weight": 1, **verbs}
        assert bindings(KubeScheduler(server.url, [config])) == {"p": "a"}
    created = server.get("pods", "p")
    assert created is not None
    assert "nodeName" not in created["spec"], "the extender binds the pod"
    # A single node is not scored.
    assert [path for path, _ in calls] == ["/presage/filter", "/presage/bind"]
    assert calls[0][1]["Nodes"]["items"][0]["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert calls[1][1] == {
        "PodName": "p", "PodNamespace": "default", "PodUID": created["metadata"]["uid"],
        "Node": "a",
    }  # fmt: skip


@pytest.mark.parametrize("ignorable", [True, False])
@pytest.mark.parametrize(
    "response", [500, 201, {"Error": "no forecast"}, {"NodeNames": ["unknown"]}, "no object"]
)
def test_only_an_ignorable_extender_may_fail(server, response, ignorable):
    server.create("nodes", node("a"))
    server.create("pods", pod("p"))
    with extender({"filter": lambda body: response}) as (url, _):
        config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
        scheduler = KubeScheduler(server.url, [{**config, "ignorable": ignorable}])
        assert bindings(scheduler) == ({"p": "a"} if ignorable else {})
    if not ignorable:
        assert condition(server, "p")["reason"] == "SchedulerError"


def test_an_extender_manages_only_its_own_resources(server):
    server.create("nodes", node("a", gpus=0))
    server.create("pods", pod("plain"))
    server.create("pods", pod("with-devices", gpus=4))
    with extender({"filter": lambda body: {"NodeNames": []}}) as (url, calls):
        managed = {"name": "nvidia.com/gpu", "ignoredByScheduler": True}
        config = {"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}
        scheduler = KubeScheduler(server.url, [{**config, "managedResources": [managed]}])
        assert bindings(scheduler) == {"plain": "a"}
    assert [body["Pod"]["metadata"]["name"] for _, body in calls] == ["with-devices"]


def terminating(server: ApiServer) -> list[str]:
    """Return the terminating pods."""
    found = [found["metadata"] for found in server.all("pods")]
    return [metadata["name"] for metadata in found if "deletionTimestamp" in metadata]


def fill_nodes(server: ApiServer) -> None:
    """Create two full nodes; emptying n2 is cheaper."""
    for name, low in (("n1", ["a", "b"]), ("n2", ["c"])):
        server.create("nodes", node(name, gpus=8))
        for pod_name in low:
            size = 8 // len(low)
            server.create(
                "pods", pod(pod_name, gpus=size, priorityClassName="usual", nodeName=name)
            )
            server.set_phase(pod_name, "Running")


def test_preemption_selects_the_cheapest_victims_and_waits_for_them(server):
    fill_nodes(server)
    server.create("pods", pod("urgent", gpus=8, priorityClassName="urgent"))
    scheduler = KubeScheduler(server.url)

    assert scheduler.step() == []
    urgent, victim = server.get("pods", "urgent"), server.get("pods", "c")
    assert urgent is not None
    assert victim is not None
    assert urgent["status"]["nominatedNodeName"] == "n2"
    assert terminating(server) == ["c"]
    disrupted = [c for c in victim["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert disrupted[0]["reason"] == "PreemptionByScheduler"
    server.create("nodes", node("n3", gpus=8))
    server.create("pods", pod("cheaper", gpus=8, nodeName="n3"))
    assert scheduler.step() == []
    assert terminating(server) == ["c"], "no second preemption, even if another node is cheaper now"
    server.finish("c")
    assert bindings(scheduler) == {"urgent": "n2"}
    bound = server.get("pods", "urgent")
    assert bound is not None
    assert "nominatedNodeName" not in bound["status"]


def test_pods_of_lower_priority_do_not_take_nominated_capacity(server):
    server.create("nodes", node("n", gpus=8))
    for name in ("a", "b"):
        server.create("pods", pod(name, gpus=4, nodeName="n"))
    server.create("pods", pod("urgent", gpus=8, priorityClassName="urgent"))
    scheduler = KubeScheduler(server.url)
    scheduler.step()
    assert terminating(server) == ["a", "b"]
    server.finish("a")
    server.create("pods", pod("small", gpus=1, priorityClassName="usual"))
    assert scheduler.step() == []
    server.finish("b")
    assert bindings(scheduler) == {"urgent": "n"}


def test_preemption_spares_the_most_important_pods(server):
    server.create("nodes", node("n", gpus=8))
    server.create("pods", pod("a", gpus=4, nodeName="n", priorityClassName="usual"))
    server.create("pods", pod("b", gpus=4, nodeName="n"))
    server.create("pods", pod("urgent", gpus=4, priorityClassName="urgent"))
    KubeScheduler(server.url).step()
    assert terminating(server) == ["b"]


def test_no_victims_for_a_pod_that_never_preempts_or_would_not_fit(server):
    fill_nodes(server)
    never = pod("patient", gpus=4, priorityClassName="urgent", preemptionPolicy="Never")
    server.create("pods", never)
    server.create("pods", pod("equal", gpus=4, priorityClassName="usual"))
    server.create("pods", pod("huge", gpus=9, priorityClassName="urgent"))
    scheduler = KubeScheduler(server.url)
    scheduler.step()
    assert terminating(server) == []

    server.create("pods", pod("half", gpus=4, priorityClassName="urgent"))
    scheduler.step()
    assert terminating(server) == ["c"], "the latest started among equal victims"


@pytest.mark.parametrize("by_name", [True, False])
def test_an_extender_can_select_the_victims(server, by_name):
    fill_nodes(server)
    server.create("pods", pod("urgent", gpus=4, priorityClassName="urgent"))
    uid = {p["metadata"]["name"]: p["metadata"]["uid"] for p in server.all("pods")}
    responses: Responses = {
        "preempt": lambda body: {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": uid["a"]}]}}}
    }
    with extender(responses) as (url, calls):
        config = {"urlPrefix": url, "preemptVerb": "preempt", "nodeCacheCapable": by_name}
        KubeScheduler(server.url, [config]).step()
    used, unused = ("NodeNameToMetaVictims", "NodeNameToVictims")[:: 1 if by_name else -1]
    ((_, body),) = calls
    assert body[unused] is None
    assert body[used].keys() == {"n1", "n2"}
    (victim,) = body[used]["n2"]["Pods"]
    assert victim == {"UID": uid["c"]} if by_name else victim["metadata"]["name"] == "c"
    urgent = server.get("pods", "urgent")
    assert urgent is not None
    assert urgent["status"]["nominatedNodeName"] == "n1"
    assert terminating(server) == ["a"]


def test_nodes_that_an_extender_marks_unresolvable_are_not_preempted(server):
    fill_nodes(server)
    server.create("pods", pod("tiny", gpus=0, priorityClassName="urgent"))
    responses: Responses = {
        "filter": lambda body: {
            "NodeNames": [],
            "FailedNodes": {"n1": "not now"},
            "FailedAndUnresolvableNodes": {"n2": "never"},
        },
        "preempt": lambda body: {"NodeNameToMetaVictims": {}},
    }
    with extender(responses) as (url, calls):
        verbs = {"filterVerb": "filter", "preemptVerb": "preempt"}
        KubeScheduler(server.url, [{"urlPrefix": url, "nodeCacheCapable": True, **verbs}]).step()
    # It fits on n1 without preemption, so there is no candidate.
    assert [path for path, _ in calls] == ["/presage/filter"]
    assert condition(server, "tiny")["message"] == "0/2 nodes are available: 1 never, 1 not now."


def test_a_failed_binding_is_retried(server):
    server.create("nodes", node("a"))
    server.create("pods", pod("p"))
    scheduler = KubeScheduler(server.url)
    server.fail_requests("create", "/pods/p/binding", 500)
    assert scheduler.step() == []
    assert condition(server, "p")["reason"] == "SchedulerError"
    assert bindings(scheduler) == {"p": "a"}


def test_pods_are_bound_in_the_background(server):
    server.create("nodes", node("a"))
    server.create("pods", pod("p", gates=["a.b/c"]))
    with KubeScheduler(server.url):
        server.fail_requests("list", "/nodes", 503)
        server.change("pods", "p", {"spec": {"schedulingGates": None}})
        wait_until(lambda: condition(server, "p")["status"] == "True", 5)


def test_an_unsupported_configuration_is_rejected():
    with pytest.raises(ValueError, match="tlsConfig"):
        KubeScheduler("http://x", [{"urlPrefix": "http://y", "tlsConfig": {}}])
    with pytest.raises(ValueError, match="positive weight"):
        KubeScheduler("http://x", [{"urlPrefix": "http://y", "prioritizeVerb": "p"}])
    with pytest.raises(ValueError, match="httpTimeout"):
        KubeScheduler("http://x", [{"urlPrefix": "http://y", "httpTimeout": "5"}])
    both = [{"urlPrefix": "http://y", "bindVerb": "bind"}] * 2
    with pytest.raises(ValueError, match="only one extender"):
        KubeScheduler("http://x", both)
