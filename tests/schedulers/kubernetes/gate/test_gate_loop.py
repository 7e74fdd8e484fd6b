"""The loop of the gate with a failing server: running pods are verified before deletion."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.kubernetes.api.cache import Cache
from presage.schedulers.kubernetes.gate.gang_gate import Gate
from presage.schedulers.kubernetes.gate.gate_loop import run_gate
from presage.schedulers.kubernetes.gate.writer import Writer
from presage.schedulers.kubernetes.kubernetes_names import GATE, POD_GROUP_LABEL
from presage.schedulers.policies.gang.gang_policy import Gang
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.job_controller import JobController
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod, pod_group
from tests.support.waiting import stays_true, wait_until


def is_deleted(one) -> bool:
    return "deletionTimestamp" in one["metadata"]


def test_a_running_gang_is_not_deleted_because_of_a_delayed_watch():
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        server.create("nodes", node("n0"))
        server.create("podgroups", pod_group("train", 2, scheduleTimeoutSeconds=1))
        member = pod("", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: "train"})
        JobController(server).create_pods("train", [member] * 2)
        api, stopping = server.client(retries=False), threading.Event()
        with Cache(api) as cache:
            work = (Gate(Gang(), NoForecasts), cache, Writer(api, cache.put), stopping)
            gate = threading.Thread(target=run_gate, args=work)
            gate.start()
            try:
                wait_until(
                    lambda: (
                        not any(one["spec"].get("schedulingGates") for one in server.all("pods"))
                    )
                )
                server.fail_requests("watch", "/pods", 503, times=1000, retry_after_s=20)
                server.drop_watches()
                assert len(KubeScheduler(server.url).step()) == 2
                wait_until(lambda: server.requests_to("list", "/namespaces/default/pods"))
                assert stays_true(lambda: not any(map(is_deleted, server.all("pods"))), 0.3)
            finally:
                stopping.set()
                gate.join()
        assert not any(map(is_deleted, server.all("pods")))
        assert not any(one["reason"] == "PlanRolledBack" for one in server.all("events"))
