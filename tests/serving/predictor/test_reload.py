"""A new release takes over between two calls, or is rejected visibly."""

import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from presage.errors import RefusedReleaseError, ReleaseError, ServiceError
from presage.features.columns.schema import columns
from presage.features.placement import Placement
from presage.models.registry.registry import Registry
from presage.models.release.release import MANIFEST, Release
from presage.serving.client.client import PresageClient
from presage.serving.oip.messages import SERVICE_NAME, ModelInferResponse
from presage.serving.predictor.release_follower import (
    CheckoutSource,
    FolderSource,
    RegistrySource,
    Source,
)
from presage.serving.server_options import Options
from presage.system.files.atomic_folder import put_in_place
from tests.serving.conftest import STEP_FACTORS, column_times, make_models, make_release
from tests.serving.oip.requests import features, raw_request
from tests.serving.support.processes import free_port
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until


class PolledSource:
    """Source of releases that counts how often it was polled."""

    def __init__(self, source: Source) -> None:
        self.source, self.polls = source, 0

    def mark(self) -> str:
        self.polls += 1
        return self.source.mark()

    def folder(self) -> Path | Release:
        return self.source.folder()

    def wait_until_handled(self) -> None:
        """Wait until a poll that began from now on has been handled."""
        before = self.polls
        wait_until(lambda: self.polls >= before + 2)  # the next one begins when it has ended


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Releases whose step times are the roofline's times 1, 2 and 100."""
    folder = tmp_path_factory.mktemp("releases")
    return {
        factor: make_release(
            folder / f"times-{factor}",
            models=make_models()
            | {"step_time": column_times("roofline_s", tuple(factor * f for f in STEP_FACTORS))},
        )
        for factor in (1, 2, 100)
    }


@pytest.fixture
def registry(tmp_path, releases):
    """Registry whose champion is the first release."""
    registry = Registry(f"sqlite:///{tmp_path}/registry/mlflow.db")
    for release in releases.values():
        registry.register(release, {})
    registry.promote(1)
    return registry


def replace(folder, release):
    """Put a copy of a release at a folder, as `dvc repro` does."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.copytree(release.folder, new)
    put_in_place(new, folder)


def test_5000_requests_of_8_clients_meet_20_promotions_and_rollbacks(
    registry, releases, tmp_path, job, cpu
):
    source = RegistrySource(registry.uri, tmp_path / "cache")
    jobs = [job(f"job-{i}", batch_size=1 + i) for i in range(8)]
    alone_s = {  # what each release answers, from the law its models are written by
        release.release_id: factor for factor, release in releases.items()
    }
    promoting = threading.Event()

    def named(features, job_id):
        return replace_fields(features, job=replace_fields(features.job, job_id=job_id))

    def ask(name, client):
        answers = []
        for i in range(625):
            # Every other one is new, so that models run; the others may be answered from what
            # is kept.
            asked = jobs if i % 2 else [named(j, f"{name}-{i}") for j in jobs]
            placements = [Placement(asked[(i + k) % 8], cpu) for k in range(4)]
            forecasts = client.predict(placements)
            answers.append([(f.step_time_s.release_id, f.step_time_s.median) for f in forecasts])
            if i > 300:
                promoting.wait(30)  # not to be done before the last promotion
        return answers

    with start_server(source, Options(port=0, poll_s=0.02)) as server:
        clients = [PresageClient(server.target) for _ in range(8)]
        seconds = {
            j.job.job_id: clients[0].predict([Placement(j, cpu)])[0].step_time_s.median
            for j in jobs
        }
        with ThreadPoolExecutor(8) as pool:
            asking = [pool.submit(ask, *named_client) for named_client in enumerate(clients)]
            served = []
            for turn in range(10):
                registry.promote(2)
                wait_until(lambda: clients[0].release().release_id == releases[2].release_id)
                registry.rollback()
                wait_until(lambda: clients[0].release().release_id == releases[1].release_id)
                served.append(turn)
            promoting.set()
            answers = [answer for future in asking for answer in future.result()]
        for client in clients:
            client.close()
        repeated = server.metrics.registry.get_sample_value("presage_response_cache_hits_total")

    assert len(served) == 10
    assert len(answers) == 5000
    seen = set()
    by_time = sorted(seconds.values())
    for answer in answers:
        ids = {release_id for release_id, _ in answer}
        assert len(ids) == 1  # one release answered all of it
        (release_id,) = ids
        seen.add(release_id)
        for _, median in answer:
            base = median / alone_s[release_id]
            assert min(abs(base - s) / s for s in by_time) < 1e-6  # and with its own model
    assert seen == {releases[1].release_id, releases[2].release_id}
    # The others, more than half, were answered by a model.
    assert repeated and repeated < 2500


def test_inference_requests_that_begin_alike_are_answered_by_the_release_they_name(
    releases, tmp_path
):
    folder = tmp_path / "release"
    replace(folder, releases[1])
    factors = {releases[f].release_id: f for f in (1, 2)}
    roofline = columns("full").index("roofline_s")
    done = threading.Event()
    answered: list[int] = []

    def ask(name: int, target: str) -> Counter[int]:
        seen: Counter[int] = Counter()
        with grpc.insecure_channel(target) as channel:
            infer: Any = channel.unary_unary(f"/{SERVICE_NAME}/ModelInfer")
            while not done.is_set():
                rows = features()
                rows[0, roofline] = name + 1 + seen.total() % 7
                asked = raw_request("step_time", {"features": rows}).SerializeToString()
                answer = ModelInferResponse.FromString(infer(asked, timeout=10))
                quantiles = np.frombuffer(answer.raw_output_contents[0], "<f4")
                factor = factors[answer.model_version]
                assert quantiles.tolist() == [rows[0, roofline] * factor * f for f in STEP_FACTORS]
                seen[factor] += 1
                answered.append(factor)
        return seen

    with (
        start_server(FolderSource(folder), Options(port=0, poll_s=0.02)) as server,
        PresageClient(server.target) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        asking = [pool.submit(ask, 10 * i, server.target) for i in range(4)]
        try:
            for factor in (2, 1, 2, 1, 2):
                replace(folder, releases[factor])
                wait_until(lambda: client.release().release_id == releases[factor].release_id)  # noqa: B023
                before = answered.count(factor)
                wait_until(lambda: answered.count(factor) >= before + 10)  # noqa: B023
        finally:
            done.set()
        seen: Counter[int] = sum((future.result() for future in asking), Counter())

    assert min(seen[1], seen[2]) > 10


def test_a_folder_that_is_replaced_takes_over(releases, tmp_path, job, cpu):
    folder = tmp_path / "release"
    replace(folder, releases[1])
    options, source = Options(port=0, poll_s=0.05), PolledSource(FolderSource(folder))
    with start_server(source, options) as server, PresageClient(server.target) as ask:
        before = ask.predict([Placement(job(), cpu)])[0].step_time_s
        replace(folder, releases[2])
        wait_until(lambda: ask.release().release_id == releases[2].release_id)
        after = ask.predict([Placement(job(), cpu)])[0].step_time_s

        assert (before.release_id, after.release_id) == (
            releases[1].release_id,
            releases[2].release_id,
        )
        assert after.median == pytest.approx(2 * before.median)

        shutil.rmtree(folder)  # says nothing new
        source.wait_until_handled()
        assert ask.release().release_id == releases[2].release_id
        assert ask.release().refused is None


@pytest.mark.parametrize("damage", ["changed", "gone", "nonsense", "out of proportion", "nan"])
def test_a_bad_release_is_rejected_and_the_old_one_stays(
    releases, tmp_path, job, cpu, damage, caplog
):
    folder = tmp_path / "release"
    replace(folder, releases[1])
    bad = tmp_path / "bad"
    if damage == "out of proportion":
        shutil.copytree(releases[100].folder, bad)
    elif damage == "nan":
        nan = column_times("roofline_s", (float("nan"),) * 5)
        make_release(bad, models=make_models() | {"step_time": nan})
    else:
        shutil.copytree(releases[2].folder, bad)
        if damage == "changed":
            (bad / "memory.onnx").write_bytes(b"changed")
        elif damage == "gone":
            (bad / "memory.onnx").unlink()
        else:
            (bad / MANIFEST).write_text("[1, 2")
    said = {
        "changed": "sha256 is",
        "gone": "cannot be read",
        "nonsense": "not JSON",
        "out of proportion": "a factor of 100",
        "nan": "predicted quantiles",
    }[damage]
    options = Options(port=0, poll_s=0.05)
    with start_server(FolderSource(folder), options) as server, PresageClient(server.target) as ask:
        put_in_place(bad, folder)
        wait_until(lambda: ask.release().refused is not None)

        now = ask.release()
        assert now.release_id == releases[1].release_id
        assert now.refused and said in now.refused.reason
        assert ask.predict([Placement(job(), cpu)])[0].step_time_s.median > 0
        with pytest.raises(RefusedReleaseError, match=said):
            ask.reload()
        counted = server.metrics.registry.get_sample_value("presage_releases_rejected_total")
        assert counted == 1  # a release, however often it is tried

        replace(folder, releases[2])
        wait_until(lambda: ask.release().release_id == releases[2].release_id)
        assert ask.release().refused is None


@dataclass
class Chosen:
    """Source of a chosen release that counts how often each one is fetched."""

    release: Release
    tries: Counter[str] = field(default_factory=Counter)

    def mark(self):
        return self.release.release_id

    def folder(self):
        self.tries[self.mark()] += 1
        return self.release.folder


def test_a_rejected_release_that_is_rolled_back_is_no_longer_reported(releases):
    source = Chosen(releases[1])
    options = Options(port=0, poll_s=0.05)
    with start_server(source, options) as server, PresageClient(server.target) as ask:
        for turn in (1, 2):
            source.release = releases[100]
            wait_until(lambda: ask.release().refused is not None)
            tries = source.tries[releases[100].release_id]
            wait_until(lambda: source.tries[releases[100].release_id] >= tries + 2)  # noqa: B023
            counted = server.metrics.registry.get_sample_value("presage_releases_rejected_total")
            assert counted == turn
            source.release = releases[1]
            wait_until(lambda: ask.release().refused is None)
            assert ask.release().release_id == releases[1].release_id


def test_a_rejected_release_does_not_delay_another(releases):
    """It is itself tried less and less often; the next release is checked at the usual rate."""
    source = Chosen(releases[1])
    with (
        start_server(source, Options(port=0, poll_s=0.2)) as server,
        PresageClient(server.target) as ask,
    ):
        begin_s = time.monotonic()
        source.release = releases[100]
        wait_until(lambda: source.tries[releases[100].release_id] >= 4)
        assert time.monotonic() - begin_s > 2  # at about 0.2, 0.6, 1.4, 3.0 s, and next at 6.2 s
        begin_s = time.monotonic()
        source.release = releases[2]
        wait_until(lambda: ask.release().release_id == releases[2].release_id)
        assert time.monotonic() - begin_s < 1.5


def test_a_release_whose_probes_differ_on_this_machine_is_not_served(tmp_path, handmade_models):
    made = make_release(tmp_path / "made")
    other = handmade_models.all() | {
        "memory": handmade_models.column_times("memory_prior_bytes", (0.5, 1.0, 2.02, 3.0, 4.0))
    }
    moved = make_release(tmp_path / "moved", models=other, probes=made.probes)

    with pytest.raises(ReleaseError, match=r"memory\.onnx: predicts .* for probe 0, but .*"):
        start_server(moved)


def test_an_unavailable_or_corrupt_registry_changes_nothing(registry, releases, tmp_path, job, cpu):
    database = tmp_path / "registry" / "mlflow.db"
    source = PolledSource(RegistrySource(registry.uri, tmp_path / "cache"))
    with (
        start_server(source, Options(port=0, poll_s=0.05)) as server,
        PresageClient(server.target) as ask,
    ):
        aside = database.rename(database.with_suffix(".aside"))
        for nonsense in (b"", b"not a database " * 100):
            database.write_bytes(nonsense)
            source.wait_until_handled()
            assert ask.release().release_id == releases[1].release_id
            assert ask.release().refused is None
        database.unlink()
        source.wait_until_handled()
        assert ask.predict([Placement(job(), cpu)])[0].step_time_s.release_id == (
            releases[1].release_id
        )

        aside.rename(database)
        registry.promote(2)
        wait_until(lambda: ask.release().release_id == releases[2].release_id)


def test_the_first_champion_replaces_the_pretrained_release(releases, tmp_path):
    registry = Registry(f"sqlite:///{tmp_path}/registry/mlflow.db")
    source = CheckoutSource(registry.uri, releases[1].folder)
    options = Options(port=0, poll_s=0.05)
    with start_server(source, options) as server, PresageClient(server.target) as ask:
        assert ask.release().release_id == releases[1].release_id
        registry.promote(registry.register(releases[2], {}))
        wait_until(lambda: ask.release().release_id == releases[2].release_id)


def test_reload_does_not_wait_for_the_next_poll(releases, tmp_path):
    folder = tmp_path / "release"
    replace(folder, releases[1])
    options = Options(port=0, poll_s=3600)
    with start_server(FolderSource(folder), options) as server, PresageClient(server.target) as ask:
        replace(folder, releases[2])
        assert ask.reload().release_id == releases[2].release_id


def test_without_a_release_calls_are_unavailable_and_health_reports_it(tmp_path, releases):
    """A slow registry: the port accepts calls, and no call gets a wrong response."""
    let_go = threading.Event()

    class Slow:
        def mark(self):
            return "x"

        def folder(self):
            let_go.wait(10)
            return releases[1].folder

    port = free_port()
    starting = threading.Thread(
        target=lambda: running.append(start_server(Slow(), Options(port=port)))
    )
    running: list = []
    starting.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "presage.v1.PredictionService", "memory"):
                answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
                assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        with (
            PresageClient(f"127.0.0.1:{port}", timeout_s=0.3) as ask,
            pytest.raises(ServiceError, match=r"still being loaded|did not answer within"),
        ):
            ask.release()
    finally:
        let_go.set()
        starting.join(10)
    with running[0], PresageClient(f"127.0.0.1:{port}") as ask:
        assert ask.release().release_id == releases[1].release_id
