"""The bridge in this process: whatever fails, its answer in time is "no changes"."""

from __future__ import annotations

import math
import socket
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from presage.errors import InvalidJobError, ServiceError, UnknownDeviceError
from presage.schedulers.slurm.bridge.bridge import MAX_PENDING, Bridge
from presage.schedulers.slurm.bridge.bridge_server import SOCKET, BridgeServer
from presage.schedulers.slurm.bridge.decide import MIB, DecisionOptions
from presage.schedulers.slurm.bridge.submission import parse_lines
from presage.schedulers.slurm.feature_store import FeatureStore
from presage.schedulers.slurm.feature_text import to_text
from presage.schedulers.slurm.job_note import JobNote
from tests.features import examples
from tests.schedulers.slurm.test_decide import forecast, forecasts

FEATURES = to_text(examples.features())
NOTHING = {"presage": "1"}


class FakeBackend:
    """Backend with one forecast for all jobs, or an error."""

    def __init__(self, answer=None, *, wait: Event | None = None) -> None:
        self.answer, self.wait = answer or forecasts(), wait
        self.coverages: list[float] = []
        self.sizes: list[tuple[int, int]] = []

    def predict(self, placements, *, coverage):
        self.coverages.append(coverage)
        if self.wait is not None:
            self.wait.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer for _ in placements]

    def predict_scaling(self, request, *, coverage):
        (size,) = request.placements
        assert request.requested == size
        self.sizes.append((size.gpus, size.nodes))
        return SimpleNamespace(forecasts=[SimpleNamespace(step_time_s=forecast(0.2, 0.5))])

    def device(self, kind):
        if kind == "unknown":
            raise UnknownDeviceError("no device of kind 'unknown'")
        return examples.device(kind=kind)


def request(**values: str) -> bytes:
    given = {
        "presage": "1",
        "own_limit": "600",
        "gres_per_node": "1",
        "gres": "gres:gpu:a100:1",
        "features": FEATURES,
    } | values
    return "".join(f"{name}={value}\n" for name, value in given.items()).encode() + b"\n"


def make_bridge(
    folder: Path, backend=None, *, kinds=None, is_watched=True, timeout_s=5.0, **options
) -> Bridge:
    return Bridge(
        backend or FakeBackend(),
        FeatureStore(folder),
        kinds or {"a100": "a100-80gb", "fpga": "unknown"},
        DecisionOptions(**options),
        is_watched=lambda: is_watched,
        timeout_s=timeout_s,
    )


def answer(bridge: Bridge, raw: bytes) -> dict[str, str]:
    return parse_lines(bridge.respond(raw))


def test_a_job_gets_a_limit_and_a_note_and_its_features_are_stored(tmp_path):
    found = answer(make_bridge(tmp_path), request())

    assert found["time_limit"] == "50"
    note = JobNote.parse(found["note"])
    assert note is not None
    assert (note.own_minutes, note.set_minutes, note.device) == (600, 50, "a100-80gb")
    assert FeatureStore(tmp_path).get(note.features)


def test_quantile_and_risk_are_requested_as_coverages(tmp_path):
    backend = FakeBackend()
    answer(make_bridge(tmp_path, backend), request())
    assert backend.coverages == [0.8]

    answer(make_bridge(tmp_path, backend, quantile=0.95, risk=0.05), request())
    answer(make_bridge(tmp_path, backend, quantile=0.95), request())
    assert backend.coverages == [0.8, 0.9, 0.9, 0.8]


def test_a_risk_of_one_half_requests_the_median_of_the_memory(tmp_path):
    backend = FakeBackend()
    on_cpu = {"cpu": "cpu", "gpu": "a100-80gb"}
    bridge = make_bridge(tmp_path, backend, kinds=on_cpu, risk=0.5)

    found = answer(bridge, request(gres="", gres_per_node="0"))

    assert backend.coverages == [0.8]  # releases have no interval of coverage 0
    assert int(found["memory_mib"]) == math.ceil(backend.answer.memory_bytes.median / MIB)
    assert backend.answer.memory_bytes.high > backend.answer.memory_bytes.median


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"gres": "gres:gpu:a100:4"}, (4, 1)),
        ({"gres": "gres:gpu:a100:4", "nodes": "2", "tasks": "8"}, (8, 2)),
        ({"gres": "gres:gpu:a100:4", "nodes": "2", "gres_per_node": "0"}, (4, 2)),
        ({"gres": "gres:gpu:a100:1", "nodes": "3"}, (3, 3)),
    ],
)
def test_the_step_of_several_gpus_includes_their_synchronization(changes, size, tmp_path):
    backend = FakeBackend()
    found = answer(make_bridge(tmp_path, backend, shards_per_gpu=10), request(**changes))

    # A run of 3,000 s at steps of 0.2 s, of which 100 are now 0.5 s.
    assert backend.sizes == [size]
    assert found["time_limit"] == "51"
    note = JobNote.parse(found["note"])
    assert note is not None
    assert note.predicted_s == 3030
    assert not note.features


def test_a_job_on_the_cpus_of_several_nodes_or_tasks_is_unchanged(tmp_path):
    bridge = make_bridge(tmp_path, kinds={"cpu": "cpu-2"})

    assert "note" in answer(bridge, request(gres=""))
    assert answer(bridge, request(gres="", nodes="2")) == NOTHING
    assert answer(bridge, request(gres="", tasks="2")) == NOTHING


def test_without_a_watcher_the_limit_is_unchanged(tmp_path):
    found = answer(make_bridge(tmp_path, is_watched=False), request())

    assert "time_limit" not in found
    note = JobNote.parse(found["note"])
    assert note is not None
    assert note.set_minutes is None


@pytest.mark.parametrize(
    "changes",
    [
        {"presage": "2"},
        {"features": ""},
        {"features": "A" * 1000},
        {"features": FEATURES[:-20]},
        {"own_limit": "soon"},
        {"is_heterogeneous": "1"},
        {"nodes": "many"},
        {"nodes": "9", "gres_per_node": "0", "gres": "gres:gpu:a100:8"},
        {"gres": "gres:gpu:a100:99999"},
        {"gres": "gres:gpu:h100:1"},
        {"gres": "gres:shard:1"},
        {"gres": ""},
        {"gres": "gres:gpu:fpga:1"},
    ],
)
def test_a_request_without_a_forecast_changes_nothing(changes, tmp_path):
    assert answer(make_bridge(tmp_path), request(**changes)) == NOTHING


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"\xff\n\n", b"GET / HTTP/1.1\n\n"])
def test_a_request_of_another_form_changes_nothing(raw, tmp_path):
    assert answer(make_bridge(tmp_path), raw) == NOTHING


@pytest.mark.parametrize(
    "error",
    [
        ServiceError("no prediction service"),
        InvalidJobError("a job that cannot exist"),
        ValueError("forecast out of order: nan <= nan <= nan"),
        ZeroDivisionError(),
        RuntimeError("a defect"),
    ],
)
def test_a_predictor_that_fails_changes_nothing(error, tmp_path):
    assert answer(make_bridge(tmp_path, FakeBackend(error)), request()) == NOTHING


def test_infinite_forecasts_change_no_request(tmp_path):
    infinite = forecasts(float("inf"), float("inf"))

    found = answer(make_bridge(tmp_path, FakeBackend(infinite)), request())

    assert set(found) == {"presage", "note"}


def test_a_full_disk_changes_nothing(tmp_path):
    (tmp_path / "features").write_text("a file instead of the folder")

    assert answer(make_bridge(tmp_path), request()) == NOTHING


def test_a_predictor_that_hangs_delays_no_answer_and_takes_no_more_than_its_threads(tmp_path):
    release = Event()
    bridge = make_bridge(tmp_path, FakeBackend(wait=release), timeout_s=0.01)
    try:
        for _ in range(3 * MAX_PENDING):
            begin_s = time.monotonic()
            assert answer(bridge, request()) == NOTHING
            assert time.monotonic() - begin_s < 0.5
        assert bridge.counts["busy"] >= MAX_PENDING
    finally:
        release.set()
    until_s = time.monotonic() + 10
    while "time_limit" not in answer(bridge, request()):
        assert time.monotonic() < until_s


def ask(path: Path, raw: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(raw)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_the_socket_is_for_its_user_only_and_goes_away(tmp_path):
    path = tmp_path / SOCKET
    with BridgeServer(path, lambda raw: raw[:3]):
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, b"abc\n\n") == b"abc"
    assert not path.exists()


def test_a_request_that_is_cut_off_or_too_large_is_dropped(tmp_path):
    path = tmp_path / SOCKET
    with BridgeServer(path, lambda raw: b"answer"):
        assert ask(path, b"presage=1\n") == b""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            with pytest.raises(OSError):
                for _ in range(100):
                    connection.sendall(b"x" * 100_000)
        assert ask(path, b"\n\n") == b"answer"


def test_the_socket_of_a_killed_bridge_is_replaced_and_that_of_a_running_one_is_not(tmp_path):
    path = tmp_path / SOCKET
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with BridgeServer(path, lambda raw: b"answer"):
        with pytest.raises(ServiceError, match="another bridge"):
            BridgeServer(path, lambda raw: b"")
        assert ask(path, b"\n\n") == b"answer"


def test_a_note_of_a_shared_gpu_has_its_share(tmp_path):
    found = answer(make_bridge(tmp_path, shards_per_gpu=10), request(options="share"))

    note = JobNote.parse(found["note"])
    assert note is not None
    assert (found["shards"], note.share) == ("7", 0.7)  # 20 of 32 GB
    assert replace(note, share=1.0) != note
