"""Fallback without a response of the predictor: an exclusive device for each job."""

from __future__ import annotations

import math
import socket
import time

import pytest

from presage.errors import (
    InvalidJobError,
    OverloadedError,
    ReleaseError,
    ServiceError,
    UnknownDeviceError,
)
from presage.features.colocation import Colocation
from presage.features.device.device import Share
from presage.features.placement import Placement
from presage.serving.client.client import PresageClient
from presage.serving.predictor.fallback import NO_RELEASE, Fallback, exclusive_device
from presage.serving.predictor.predictor import Predictor
from presage.serving.server_options import Options
from tests.serving.support.processes import free_port
from tests.serving.support.running_server import start_server


@pytest.fixture
def unreachable():
    """Client of a port without a listener."""
    with PresageClient(f"127.0.0.1:{free_port()}", timeout_s=0.1) as client:
        yield Fallback(client)


def test_available_forecasts_are_passed_on_unchanged(backend, job, cpu):
    placements = [Placement(job(), cpu), Placement(job(batch_size=64), cpu, Share(0.5, "mps"))]
    together = [Colocation(cpu, (job(), job()), (Share(), Share()))]
    fallback = Fallback(backend)

    assert fallback.predict(placements, coverage=0.9) == backend.predict(placements, coverage=0.9)
    assert fallback.predict_interference(together) == backend.predict_interference(together)
    assert fallback.device("v100") == backend.device("v100")
    assert fallback.release() == backend.release()
    assert fallback.predict([]) == []


def test_without_forecasts_each_job_needs_an_exclusive_device(unreachable, job, cpu):
    placements = [Placement(job(str(i)), cpu, Share(0.25, "mps")) for i in range(3)]

    forecasts = unreachable.predict(placements, coverage=0.9)

    assert forecasts == [exclusive_device(cpu, 0.9)] * 3
    for forecast in forecasts:
        assert forecast.compute_utilization.median == 1.0
        assert forecast.memory_bytes.high == cpu.memory_bytes
        assert forecast.step_time_s.low == forecast.runtime_s.median == math.inf
        for of in (
            forecast.compute_utilization, forecast.memory_bytes, forecast.step_time_s,
            forecast.runtime_s,
        ):  # fmt: skip
            assert not of.in_domain
            assert of.release_id == NO_RELEASE
            assert of.coverage == 0.9
            assert of.low <= of.median <= of.high


def test_without_forecasts_jobs_do_not_fit_together(unreachable, job, cpu):
    def colocation(members: int) -> Colocation:
        return Colocation(cpu, (job(),) * members, (Share(),) * members)

    solo, together = unreachable.predict_interference([colocation(1), colocation(3)])

    assert [forecast.median for forecast in solo.slowdowns] == [1.0]
    assert solo.fits
    assert solo.fit_probability == 1.0
    assert [forecast.median for forecast in together.slowdowns] == [math.inf] * 3
    assert not together.fits
    assert together.fit_probability == 0.0
    assert not any(of.in_domain for of in (*solo.slowdowns, *together.slowdowns))


def test_a_hanging_backend_costs_at_most_the_timeout(job, cpu):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        PresageClient(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05) as client,
    ):
        begin_s = time.monotonic()
        assert Fallback(client).predict([Placement(job(), cpu)]) == [exclusive_device(cpu)]
        assert time.monotonic() - begin_s < 1


def test_an_overloaded_backend_is_not_retried(release, job, cpu):
    options = Options(port=0, rows_per_s=1)
    placements = [Placement(job(), cpu)] * 50
    with start_server(release, options) as server, PresageClient(server.target) as client:
        fallback = Fallback(client)
        assert fallback.predict(placements) == Predictor(release).predict(placements)
        assert fallback.predict(placements) == [exclusive_device(cpu)] * 50


@pytest.fixture
def broken(release_with, handmade_models):
    """Release that predicts its probes, but fails on jobs a thousand times as large."""
    grows = handmade_models.column_times("peak_live_bytes", (0.0, 1e29, 1e30, 1e30, 1e30))
    return release_with(models=handmade_models.all() | {"memory": grows})


def test_a_failing_release_in_process_leads_to_the_fallback(broken, job, cpu):
    large = [Placement(job(batch_size=100_000), cpu)]
    with pytest.raises(ReleaseError):
        Predictor(broken).predict(large)

    assert Fallback(Predictor(broken)).predict(large) == [exclusive_device(cpu)]


def test_errors_of_the_request_are_raised_unchanged(backend, job, cpu):
    fallback = Fallback(backend)

    with pytest.raises(InvalidJobError, match="interval"):
        fallback.predict([Placement(job(), cpu)], coverage=0.123)
    with pytest.raises(UnknownDeviceError, match="h200"):
        fallback.device("h20")


def test_errors_without_a_fallback_are_raised(unreachable):
    for ask in (unreachable.release, lambda: unreachable.device("v100")):
        with pytest.raises(ServiceError, match=r"no prediction service|did not answer"):
            ask()


@pytest.mark.parametrize("error", [ServiceError(""), OverloadedError(""), ReleaseError("")])
def test_every_error_of_a_missing_response_leads_to_the_fallback(error, release, job, cpu):
    class Silent(Predictor):
        def predict(self, placements, **_options):
            raise error

        def predict_interference(self, colocations, **_options):
            raise error

    fallback = Fallback(Silent(release))
    assert fallback.predict([Placement(job(), cpu)]) == [exclusive_device(cpu)]
    assert not fallback.predict_interference([Colocation(cpu, (job(), job()), (Share(), Share()))])[
        0
    ].fits
