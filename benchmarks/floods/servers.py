"""The servers that are flooded, as processes, and what an honest client asks of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml
from tests.schedulers.live.controller.users import Users
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import serving

from benchmarks.floods.attack import WATCH, Flood
from presage.features.device.device import find_device
from presage.features.placement import Placement
from presage.features.tables.campaign import read_campaign
from presage.models.release.pretrained import pretrained_release
from presage.serving.authentication.token_file import add_token
from presage.serving.client.client import PresageClient
from presage.serving.client.credentials import Credentials

CAMPAIGN = Path(__file__).resolve().parents[2] / "data/profiles/cpu-2-zoo"
MIB = 2**20
PREDICTION = "/presage.v1.PredictionService"
CLUSTER, NODE = "/presage.cluster.v1.ClusterService", "/presage.cluster.v1.NodeService"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Server(NamedTuple):
    """Running server, with a request of an honest client and the CA of its certificate."""

    pid: int
    port: int
    ask: Callable[[], object]
    ca: Path | None = None


def _calls(unary: str, stream: str) -> Flood:
    return Flood("calls", 3_000, 12, (unary, stream, WATCH))


def _messages(count: int, size_mib: int, connections: int, path: str) -> Flood:
    return Flood("messages", count, connections, (path,), size_mib * MIB)


SERVE_FLOODS = {
    "1,000 half-open calls, 1,000 idle streams, 1,000 watches": _calls(
        f"{PREDICTION}/Predict", f"{PREDICTION}/PredictStream"
    )
} | {
    f"250 x 4 MiB to {path.rpartition('/')[2]}, {connections} conn.": _messages(
        250, 4, connections, path
    )
    for path, connections in itertools.product(
        (
            f"{PREDICTION}/Predict",
            f"{PREDICTION}/PredictStream",
            "/grpc.health.v1.Health/Check",
            REFLECTION,
        ),
        (1, 25),
    )
}
CONTROLLER_FLOODS = {
    "1,000 half-open calls, 1,000 idle streams, 1,000 watches": _calls(
        f"{CLUSTER}/Submit", f"{NODE}/Attach"
    ),
    "40 x 60 MiB to Submit, 40 conn.": _messages(40, 60, 40, f"{CLUSTER}/Submit"),
    "40 x 60 MiB to Attach, 40 conn.": _messages(40, 60, 40, f"{NODE}/Attach"),
    "250 x 4 MiB to Submit, 25 conn.": _messages(250, 4, 25, f"{CLUSTER}/Submit"),
    "250 x 4 MiB to List, 25 conn.": _messages(250, 4, 25, f"{CLUSTER}/List"),
    "250 x 4 MiB to Watch, 25 conn.": _messages(250, 4, 25, f"{CLUSTER}/Watch"),
}
EXTENDER_FLOODS = {
    "10 bodies of 128 MiB to /filter": Flood("bodies", 10, 10, ("/filter",), 128 * MIB),
    "1,000 connections that send nothing": Flood("sockets", 1_000, 12),
}


@contextmanager
def serve(folder: Path, *, is_open: bool) -> Iterator[Server]:
    """Run `presage serve` with the pretrained release; its request predicts one job."""
    options, credentials, ca = [], Credentials(), None
    if not is_open:
        authority = make_authority(folder, "authority")
        certificate, key = make_certificate(folder, "server", authority)
        ca, tokens = authority[0], folder / "tokens"
        options = ["--tls-cert", certificate, "--tls-key", key, "--tokens", tokens]
        credentials = Credentials(token=add_token(tokens, "ann", ["predict"]), ca=ca)
    job = next(iter(read_campaign(CAMPAIGN).jobs.values()))
    placements = [Placement(job, find_device("v100-16gb"))]
    arguments = ("--release", pretrained_release(), "--no-outcomes", *options)
    with (
        serving(*arguments, cwd=folder) as running,
        PresageClient(running.target, credentials=credentials) as client,
    ):
        yield Server(running.process.pid, running.port, lambda: client.predict(placements), ca)


@contextmanager
def controller(folder: Path, *, is_open: bool) -> Iterator[Server]:
    """Run a controller; its request lists its four jobs."""
    users = Users(folder, with_tokens=not is_open)
    try:
        with users.client("ann") as ann:
            ann.submit([users.job(name) for name in "abcd"])
            yield Server(users.process.pid, users.port, ann.list)
    finally:
        users.stop()


@contextmanager
def extender(folder: Path, *, is_open: bool) -> Iterator[Server]:
    """Run an extender; its request filters two nodes, with a new connection each time."""
    # Only here: these need the package kubernetes.
    from tests.schedulers.kubernetes.api_server.api_server import ApiServer
    from tests.schedulers.kubernetes.extender.test_extender_floods import NAMES, RunningExtender
    from tests.schedulers.kubernetes.manifests import POD_GROUP_DEFINITION, node
    from tests.schedulers.kubernetes.test_kubernetes_cli import presage

    tokens = folder / "tokens"
    token = "" if is_open else add_token(tokens, "kube-scheduler", ["bind"])
    with ApiServer() as api:
        api.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        for name in NAMES:
            api.create("nodes", node(name, gpus=4))
        (folder / "kubeconfig").write_text(yaml.safe_dump(api.kubeconfig()))
        options = () if is_open else ("--tokens", str(tokens))
        with presage(folder, "extender", "--port", "0", *options) as process:
            running = RunningExtender(process, token)
            yield Server(running.pid, int(running.url.rpartition(":")[2]), running.filter)


Start = Callable[[Path], AbstractContextManager[Server]]
SERVERS: dict[str, tuple[Start, Mapping[str, Flood]]] = {
    "serve, open to this machine": (partial(serve, is_open=True), SERVE_FLOODS),
    "serve, TLS and tokens": (partial(serve, is_open=False), SERVE_FLOODS),
    "controller, open to this machine": (partial(controller, is_open=True), CONTROLLER_FLOODS),
    "controller, tokens": (partial(controller, is_open=False), CONTROLLER_FLOODS),
    "extender, open to this machine": (partial(extender, is_open=True), EXTENDER_FLOODS),
    "extender, tokens": (partial(extender, is_open=False), EXTENDER_FLOODS),
}
