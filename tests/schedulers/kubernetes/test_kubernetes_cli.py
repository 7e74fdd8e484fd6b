"""``presage kubernetes`` as processes, with a fake API server and kube-scheduler."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from presage.cli.app import app
from presage.errors import PresageError
from presage.models.release.release import load_release
from presage.schedulers.kubernetes.kubernetes_names import GATE, JOB_FEATURES, POD_GROUP_LABEL
from presage.serving.authentication.token_file import add_token
from presage.serving.client.job_features import to_json
from presage.serving.server_options import Options, Tls
from tests.features.examples import features
from tests.schedulers.kubernetes.api_server.api_server import ApiServer
from tests.schedulers.kubernetes.job_controller import JobController
from tests.schedulers.kubernetes.kube_scheduler.kube_scheduler import KubeScheduler
from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node, pod, pod_group
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until

RELEASE = Path(__file__).parents[3] / "data" / "pretrained" / "release"
LONG_S = 60.0


@pytest.fixture
def server(tmp_path) -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(server.kubeconfig()))
        yield server


@contextmanager
def presage(tmp_path: Path, *arguments: str) -> Iterator[Any]:
    """Start a command and wait for its first line."""
    command = [sys.executable, "-m", "presage", "kubernetes", *arguments]
    command += ["--kubeconfig", str(tmp_path / "kubeconfig")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith(("planning", "answering")), line + process.stderr.read()
            vars(process)["first_line"] = line
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield process
        finally:
            process.kill()


def create_gang(server: ApiServer, name: str, pods: int) -> None:
    server.create("podgroups", pod_group(name, pods))
    template = pod(
        "", gpus=1, gates=[GATE], labels={POD_GROUP_LABEL: name},
        annotations={JOB_FEATURES: to_json(features(name=name))},
    )  # fmt: skip
    JobController(server).create_pods(name, [template] * pods)


def bound_nodes(server: ApiServer, name: str) -> list[str]:
    return sorted(
        one["spec"].get("nodeName", "")
        for one in server.all("pods")
        if (one["metadata"].get("labels") or {}).get(POD_GROUP_LABEL) == name
    )


def test_a_killed_gate_continues_after_a_restart_and_stops_on_sigterm(server, tmp_path):
    for name in ("n0", "n1"):
        labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}
        server.create("nodes", node(name, gpus=4, labels=labels))
    with KubeScheduler(server.url):
        for i in range(2):
            create_gang(server, f"g{i}", 4)
        with presage(tmp_path, "gate", "--predictor", str(RELEASE)) as process:
            wait_until(lambda: server.requests_to("PATCH", "/pods/"), LONG_S, "no pod was released")
            process.send_signal(signal.SIGKILL)
            process.wait()
        with presage(tmp_path, "gate", "--predictor", str(RELEASE)) as process:
            wait_until(lambda: bound_nodes(server, "g0") == ["n0"] * 4, LONG_S, "g0 was not bound")
            wait_until(lambda: bound_nodes(server, "g1") == ["n1"] * 4, LONG_S, "g1 was not bound")
            process.send_signal(signal.SIGTERM)
            assert process.wait(5.0) == 0
    done = subprocess.run(
        [sys.executable, "-m", "presage", "kubernetes", "gangs", "--json", "--kubeconfig",
         str(tmp_path / "kubeconfig")], capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = {row["gang"]: row for row in json.loads(done.stdout)}
    assert rows["default/g0"]["state"] == rows["default/g1"]["state"] == "bound"
    assert rows["default/g0"]["devices"] == "n0/0,n0/1,n0/2,n0/3"


def test_starts_of_waiting_gangs_are_predicted(server, tmp_path):
    server.create("nodes", node("n0", gpus=2))
    for name in ("g0", "g1"):
        create_gang(server, name, 2)
    command = [sys.executable, "-m", "presage", "kubernetes", "when", "--kubeconfig",
               str(tmp_path / "kubeconfig"), "--samples", "5"]  # fmt: skip
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    first, second = json.loads(done.stdout)["answers"]
    assert (first["job_id"], first["start"]["median_s"]) == ("default/g0", 0.0)
    assert (second["job_id"], second["verdict"]) == ("default/g1", "unknown")  # no forecasts
    wrong = subprocess.run([*command, "default/g9"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "gang 'default/g9' does not wait" in wrong.stderr


def test_an_extender_passes_all_nodes_while_its_forecaster_is_down(server, tmp_path):
    labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.replicas": "2"}
    for name in ("n0", "n1"):
        server.create("nodes", node(name, gpus=2, labels=labels))
    annotations = {JOB_FEATURES: to_json(features())}
    server.create("pods", pod("busy", gpus=1, nodeName="n0", annotations=annotations))
    new = pod("new", gpus=1, annotations=annotations)
    unreachable = "127.0.0.1:9"
    with presage(tmp_path, "extender", "--predictor", unreachable, "--port", "0") as process:
        url = process.first_line.split()[-1]
        body = json.dumps({"Pod": new, "NodeNames": ["n0", "n1"]}).encode()
        request = urllib.request.Request(url + "/filter", body)
        with urllib.request.urlopen(request, timeout=20) as response:
            assert json.load(response)["NodeNames"] == ["n0", "n1"]
        with urllib.request.urlopen(url + "/status", timeout=20) as response:
            assert unreachable in json.load(response)["forecasts"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(5.0) == 0


def test_an_extender_uses_a_prediction_service_with_tls_and_token(server, tmp_path):
    labels = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB", "nvidia.com/gpu.replicas": "2"}
    server.create("nodes", node("n0", gpus=2, labels=labels))
    authority = make_authority(tmp_path, "ours")
    tls = Tls(*make_certificate(tmp_path, "server", authority))
    (tmp_path / "token").write_text(add_token(tmp_path / "tokens", "extender", ["predict"]) + "\n")
    options = Options(port=0, tls=tls, tokens=tmp_path / "tokens")
    body = {
        "Pod": pod("new", gpus=1, annotations={JOB_FEATURES: to_json(features())}),
        "NodeNames": ["n0"],
    }
    with start_server(load_release(RELEASE), options) as service:
        extender = (
            "extender",
            "--predictor",
            service.target,
            "--port",
            "0",
            "--ca",
            str(authority[0]),
        )
        for more, result in (
            ((), "requires a token"),
            (("--token-file", str(tmp_path / "token")), "ok"),
        ):
            with presage(tmp_path, *extender, *more) as process:
                url = process.first_line.split()[-1]
                request = urllib.request.Request(url + "/filter", json.dumps(body).encode())
                with urllib.request.urlopen(request, timeout=20) as response:
                    assert json.load(response)["NodeNames"] == ["n0"]
                with urllib.request.urlopen(url + "/status", timeout=20) as response:
                    assert result in json.load(response)["forecasts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["gate", "--policy", "fifo"],
            "--policy fifo: it plans no gangs over several nodes",
        ),
        (["gate", "--topology", "rack"], "--topology 'rack': write LEVEL=LABEL, each level once"),
        (["gate", "--topology", "shelf=a"], "--topology shelf is not known; known are rack, spine"),
        (["gate", "--predictor", "unreachable"], "'unreachable' is unknown"),
        (["gate", "--risk", "0.7", "--predictor", str(RELEASE)], "risk=0.7"),
        (["gate", "--hazards", "absent.json"], "absent.json: cannot be read as a hazard model"),
        (["gate", "--kubeconfig", "/nowhere"], "give --kubeconfig FILE"),
        (["extender", "--tls-cert", "a"], "give both --tls-cert and --tls-key"),
    ],
)
def test_invalid_options_are_named(tmp_path, arguments, message):
    unreachable = {"server": "http://127.0.0.1:9"}
    kubeconfig = {
        "apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": unreachable}],
        "users": [{"name": "u", "user": {}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    if "--kubeconfig" not in arguments:
        arguments = [*arguments, "--kubeconfig", str(tmp_path / "kubeconfig")]
    result = CliRunner().invoke(app, ["kubernetes", *arguments])
    assert isinstance(result.exception, PresageError)
    assert message in str(result.exception)
