"""``presage quickstart``: a real server, the table, the page, and what can go wrong."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.cli.quickstart.device_forecasts import DeviceForecast, device_forecasts
from presage.cli.quickstart.forecast_page import forecast_page
from presage.cli.quickstart.local_server import local_server
from presage.errors import InvalidJobError, ServiceError
from presage.features.device.device import catalogue
from presage.features.forecast import Forecast
from presage.serving.client.client import PresageClient
from presage.serving.predictor.prediction_backend import JobForecast
from tests.features.examples import features
from tests.serving.conftest import make_release

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}


def presage(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "presage", "quickstart", *arguments],
        cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


def forecast(low, median, high, unit="seconds"):
    return Forecast(median, low, high, unit, True, "abc")


def on(kind, low, median, high, memory_bytes=2**30):
    memory = forecast(memory_bytes, memory_bytes, memory_bytes, "bytes")
    step = forecast(low, median, high)
    busy = Forecast(0.5, 0.4, 0.6, "fraction", True, "abc")
    return DeviceForecast(catalogue()[kind], JobForecast(busy, memory, step, step))


def test_it_compares_devices_and_writes_a_page(tmp_path):
    done = presage("--job", "mlp/w128-d2/b32/sgd", "--device", "t4", "--device", "k80",
                   "--output", "page.html", cwd=tmp_path)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout.index("t4") < done.stdout.index("k80")
    assert "chart: page.html" in done.stdout
    assert all(kind in (tmp_path / "page.html").read_text() for kind in ("t4", "k80"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--job", "absent.onnx"], "absent.onnx"),
        (["--job", "nothing:here"], "nothing"),
        (["--device", "gtx-9999", "--job", "mlp/w128-d2/b32/sgd"], "gtx-9999"),
        (["--output", "absent/page.html", "--job", "mlp/w128-d2/b32/sgd"], "absent/page.html"),
    ],
)
def test_bad_input_is_one_line(arguments, error, tmp_path):
    done = presage(*arguments, cwd=tmp_path)

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert error in last
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.html"))


def test_the_server_ends_with_its_context(tmp_path):
    release = make_release(tmp_path / "release")
    with local_server("--release", str(release.folder)) as target:
        host, port = target.split(":")
        with PresageClient(target) as client:
            (only,) = device_forecasts(client, features(), [catalogue()["t4"]])
        assert only.device.kind == "t4"
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port))):
        pass


def test_a_server_that_cannot_start_is_an_error(tmp_path):
    with (
        pytest.raises(ServiceError, match=r"did not start.*absent.*run `presage serve`"),
        local_server("--release", str(tmp_path / "absent")),
    ):
        pass


class Answers:
    """Client that answers with what it was made with."""

    def __init__(self, *answers):
        self.answers = answers

    def predict_each(self, placements):
        return list(self.answers[: len(placements)])


def test_devices_without_a_forecast_are_left_out():
    slow, fast = on("t4", 2, 2, 2), on("k80", 1, 1, 1)
    client = Answers(slow.forecast, InvalidJobError("no"), fast.forecast)

    found = device_forecasts(
        cast(PresageClient, client), features(), [slow.device, catalogue()["p100"], fast.device]
    )

    assert found == [fast, slow]
    with pytest.raises(InvalidJobError, match="no"):
        device_forecasts(cast(PresageClient, Answers(InvalidJobError("no"))), features(),
                         [slow.device])  # fmt: skip


def test_a_job_fits_if_the_upper_end_of_its_memory_does():
    one = on("t4", 1, 1, 1)
    assert replace(one, device=replace(one.device, memory_bytes=2**30)).fits
    assert not replace(one, device=replace(one.device, memory_bytes=2**30 - 1)).fits


class Bars(HTMLParser):
    """Positions in % of the bars and lines of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        style = dict(attrs).get("style", "")
        self.found += [float(part.split(":")[1].rstrip("%")) for part in style.split(";") if part]


times = st.floats(1e-9, 1e6)


@given(st.lists(st.tuples(times, times, times).map(sorted), min_size=1, max_size=5))
def test_all_bars_are_within_the_chart(intervals):
    text = forecast_page("title", {}, [on("t4", *ends) for ends in intervals])

    assert all(0 <= position <= 100 for position in Bars(text).found)


def test_a_page_escapes_names():
    text = forecast_page("<script>alert(1)</script>", {"job": "<b>"}, [on("t4", 1, 2, 3)])

    assert "<script>" not in text
    assert "<b>" not in text
