"""Drift in a server's metrics, in its log, and by `presage drift`."""

from __future__ import annotations

import json
import math
import random
import re
import urllib.request
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.features.device.device import Share
from presage.features.forecast import JOB_ON_DEVICE
from presage.features.graph.op_stats import OpStats
from presage.features.placement import Placement
from presage.models.drift.drift_test import DriftPolicy
from presage.serving.client.client import PresageClient
from presage.serving.outcomes.drift_watch import DriftWatch
from presage.serving.outcomes.outcome import Outcome
from presage.serving.outcomes.outcome_log import read_outcomes, withdraw
from presage.serving.predictor.served_release import Served
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import Options
from tests.serving.support.processes import free_port, serving
from tests.serving.support.running_server import start_server
from tests.support.waiting import wait_until
from tests.system.notifications.receiver import receiver

JOBS = [{"batch_size": size} for size in (8, 16, 32, 64)]


def reported(client, job, device, runs, times, *, prefix, release_id=None, colocated_jobs=()):
    """Return outcomes of every job: its forecast times a factor and noise."""
    rng = random.Random(prefix)
    jobs = [job(**changes) for changes in JOBS]
    forecasts = client.predict([Placement(one, device) for one in jobs])
    rows = [
        Outcome(
            f"{prefix}/{run}/{i}", one, device, colocated_jobs=colocated_jobs,
            release_id=forecast.step_time_s.release_id if release_id is None else release_id,
            step_time_median_s=times * forecast.step_time_s.median * math.exp(rng.gauss(0, 0.02)),
        )
        for run in range(runs)
        for i, (one, forecast) in enumerate(zip(jobs, forecasts, strict=True))
    ]  # fmt: skip
    done = client.report(rows)
    assert done.accepted == len(rows)


@contextmanager
def reporting_to(release, log):
    server = start_server(release, Options(port=0, outcomes=log))
    with server, PresageClient(server.target) as client:
        yield client


def metric(port, name, **labels):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    message = ",".join(f'{k}="{v}"' for k, v in labels.items())
    found = re.search(rf"^presage_{name}\{{{re.escape(message)}\}} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def drift(*arguments, expect):
    result = CliRunner().invoke(app, ["drift", *map(str, arguments)], env={"COLUMNS": "160"})
    assert result.exit_code == expect, result.output
    return result.output


def test_a_server_reports_drift_also_after_a_restart(release, job, cpu, tmp_path):
    log, port = tmp_path / "log.db", free_port()
    options = ["--release", release.folder, "--outcomes", log, "--metrics-port", port]
    slower = {"quantity": "step_time_s", "slice": ""}
    with serving(*options, "--drift-s", 0.1, cwd=tmp_path) as server:
        with PresageClient(server.target) as client:
            reported(client, job, cpu, 10, 1.0, prefix="then")
            wait_until(lambda: metric(port, "drift", **slower) == 0)
            reported(client, job, cpu, 10, 1.3, prefix="now")
            wait_until(lambda: metric(port, "drift", **slower) == 1)
        assert metric(port, "drift_evidence", **slower) >= 1
        (event,) = [e for e in server.events("drift") if e["slice"] == ""]
        assert event["drift"] == "changed"

    with serving(*options, "--drift-s", 0.1, "--workers", 2, cwd=tmp_path):
        wait_until(lambda: metric(port, "drift", **slower) == 1)

    message = json.loads(drift(log, "--release", release.folder, "--json", expect=3))
    (row,) = [r for r in message["rows"] if r["slice_name"] == slower["slice"]
              and r["quantity"] == "step_time_s"]  # fmt: skip
    assert (row["drift"], row["jobs"], row["runs"]) == ("changed", 4, 80)
    assert 40 < row["noticed_after"] < 65
    assert row["change"] == pytest.approx(1.3, abs=0.05)
    assert (message["release"], message["outcomes"]) == (release.release_id, 80)
    assert "changed" in drift(log, "--release", release.folder, expect=3)


def test_outcomes_of_another_release_or_of_none_are_not_scored(release, job, cpu, tmp_path):
    log = tmp_path / "logs/log.db"
    with reporting_to(release, log) as client:
        reported(client, job, cpu, 10, 1.0, prefix="ours")
        reported(client, job, cpu, 20, 9.0, prefix="another", release_id="0123456789ab")
        reported(client, job, cpu, 20, 9.0, prefix="none", release_id="")
        colocated = ((job("other"), Share(0.5)),)
        reported(client, job, cpu, 1, 9.0, prefix="beside", colocated_jobs=colocated)

    message = drift(log.parent, "--release", release.folder, expect=0)
    for part in ("44 of 204 outcomes name this release", "80 outcomes name no release"):
        assert part in message
    # An outcome that two servers received counts once.
    twice = json.loads(drift(log, log, "--release", release.folder, "--json", expect=0))
    assert (twice["outcomes"], twice["of_other_releases"], twice["of_no_release"]) == (204, 80, 80)


def test_an_outcome_without_a_forecast_does_not_stop_the_scoring_of_others(
    release, job, cpu, tmp_path
):
    """Outcomes stay on disk: one client's report must not disable drift detection."""
    log = tmp_path / "log.db"
    huge = OpStats("MatMul", "forward", 9, 1, 1, 1, 1, 1e300, 1.0)
    outcomes = [
        Outcome("huge", replace(job(), op_stats=(huge,)), cpu, step_time_median_s=1.0),
        Outcome("instant", job(), cpu, step_time_median_s=5e-324),
        Outcome("whole", job(), cpu, runtime_s=100.0),
        Outcome("named", job(family="[/red]\x1b[2J"), cpu, step_time_median_s=1.0),
    ]
    with reporting_to(release, log) as client:
        rows = [replace(row, release_id=release.release_id) for row in outcomes]
        assert client.report(rows).accepted == 4
        reported(client, job, cpu, 10, 1.0, prefix="then")
        reported(client, job, cpu, 10, 1.4, prefix="now")

    message = json.loads(drift(log, "--release", release.folder, "--json", expect=3))
    assert (message["outcomes"], message["refused"]) == (84, 1)
    assert {"runtime_s", "step_time_s"} <= {row["quantity"] for row in message["rows"]}
    assert "\x1b" not in drift(log, "--release", release.folder, "--all", expect=3)


def test_a_replaced_log_is_read_from_its_beginning(release, job, cpu, tmp_path):
    path, served = tmp_path / "log.db", Served(Metrics())
    served.offer(release)
    watch = DriftWatch(path, served, Metrics(), DriftPolicy(10_000), every_s=1)
    for prefix, runs in (("first", 20), ("second", 3)):
        path.unlink(missing_ok=True)
        with reporting_to(release, path) as client:
            reported(client, job, cpu, runs, 1.0, prefix=prefix)
        watch.check()
        assert watch.evaluated is not None
        assert watch.evaluated.outcomes == 4 * runs


def test_a_slowdown_is_relative_to_the_solo_step_time_of_the_job(release, job, cpu, tmp_path):
    log = tmp_path / "log.db"
    colocated = ((job("other"), Share(0.5, "time-slice")),)
    with reporting_to(release, log) as client:
        reported(client, job, cpu, 1, 1.5, prefix="early", colocated_jobs=colocated)
        reported(client, job, cpu, 1, 1.0, prefix="alone")
        reported(client, job, cpu, 5, 1.5, prefix="beside", colocated_jobs=colocated)

    message = json.loads(drift(log, "--release", release.folder, "--json", expect=0))
    assert message["never_reported_alone"] == 4
    (row,) = [r for r in message["rows"] if (r["quantity"], r["slice_name"]) == ("slowdown", "")]
    assert (row["jobs"], row["runs"]) == (4, 20)


def forecast(client, job, device):
    return client.predict([Placement(job(), device)])[0].step_time_s


def test_a_server_corrects_its_forecasts_by_outcomes_until_they_are_withdrawn(
    release, job, cpu, tmp_path
):
    log, port = tmp_path / "log.db", free_port()
    options = ["--release", release.folder, "--outcomes", log, "--metrics-port", port]
    with clients_of(*options, cwd=tmp_path) as client:
        before = forecast(client, job, cpu)
        reported(client, job, cpu, 3, 1.3, prefix="wrong")
        wait_until(lambda: forecast(client, job, cpu).median > 1.2 * before.median)
        after = forecast(client, job, cpu)
        assert (after.correction.runs, after.correction.source) == (3, JOB_ON_DEVICE)
        assert metric_value(port, "offset_outcomes") == 12
    with clients_of(*options, "--workers", 2, cwd=tmp_path) as client:  # learnt again from the log
        wait_until(lambda: forecast(client, job, cpu).median > 1.2 * before.median)
        assert withdraw(log, keys=[row.idempotency_key for row in read_outcomes(log)]) == 12
        wait_until(lambda: forecast(client, job, cpu) == before)
    with clients_of(*options, "--no-offsets", cwd=tmp_path) as client:
        reported(client, job, cpu, 3, 1.3, prefix="again")
        wait_until(lambda: metric_value(port, "offset_outcomes") == 12)
        assert forecast(client, job, cpu) == before


@contextmanager
def clients_of(*options, cwd):
    """Yield a client of a server that checks its log often."""
    server = serving(*options, "--drift-s", 0.1, cwd=cwd)
    with server as running, PresageClient(running.target) as client:
        yield client


def metric_value(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        found = re.search(
            rf"^presage_{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.MULTILINE
        )
    return None if found is None else float(found[1])


def test_drift_judges_the_release_and_tells_that_offsets_repair_it(release, job, cpu, tmp_path):
    log = tmp_path / "log.db"
    served = Served(Metrics())
    served.offer(release)
    with reporting_to(release, log) as client:
        reported(client, job, cpu, 10, 1.0, prefix="then")
        reported(client, job, cpu, 40, 1.5, prefix="now")

    message = json.loads(drift(log, "--release", release.folder, "--json", expect=3))

    (row,) = [r for r in message["rows"] if (r["quantity"], r["slice_name"]) == ("step_time_s", "")]
    assert row["drift"] == "changed"
    assert row["ratio"] == pytest.approx(1.5, abs=0.05)
    assert row["offset_mape"] < row["mape"] / 2
    assert "with offsets" in drift(log, "--release", release.folder, expect=3)


def test_a_new_release_starts_without_offsets(release, release_with, job, cpu, tmp_path):
    path, served = tmp_path / "log.db", Served(Metrics())
    served.offer(release)
    watch = DriftWatch(path, served, Metrics(), DriftPolicy(10_000), every_s=1)
    with reporting_to(release, path) as client:
        reported(client, job, cpu, 3, 1.3, prefix="one")
    watch.check()
    assert forecast(served.predictor, job, cpu).correction is not None
    assert forecast(served.released, job, cpu).correction is None

    served.offer(release_with(data_digest="1" * 16))
    watch.check()

    assert served.predictor.release_id != release.release_id
    assert forecast(served.predictor, job, cpu).correction is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.db", "--release", "DIR"], "outcome log none.db cannot be read"),
        (["--release", "9"], "the registry does not exist; create it with `dvc repro`"),
        (
            ["--registry", "sqlite:///none/mlflow.db"],
            "none/mlflow.db: the champion cannot be read",
        ),
    ],
)
def test_undecidable_outcomes_are_not_drift(arguments, message, release, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [str(release.folder) if one == "DIR" else one for one in arguments]
    result = CliRunner().invoke(app, ["drift", *arguments])
    assert result.exit_code == 1
    assert message in str(result.exception)


def test_no_outcomes_are_no_drift(release, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "0 of 0 outcomes" in drift("--release", release.folder, expect=0)


def test_drift_is_sent_to_a_webhook_once(release, job, cpu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    log = tmp_path / "log.db"
    with receiver() as server, reporting_to(release, log) as client:
        monkeypatch.setenv("PRESAGE_WEBHOOK", server.url)
        reported(client, job, cpu, 10, 1.0, prefix="then")
        drift(log, "--release", release.folder, expect=0)
        reported(client, job, cpu, 40, 1.5, prefix="now")
        for _ in range(2):
            json.loads(drift(log, "--release", release.folder, "--json", expect=3))

    (event,) = server.events
    assert (event["type"], event["subject"]) == ("presage.drift.detected", release.release_id)
    (everything,) = [
        row
        for row in event["data"]["slices"]
        if (row["quantity"], row["slice"]) == ("step_time_s", "")
    ]
    assert everything["drift"] == "changed"
    assert everything["ratio"] == pytest.approx(1.5, abs=0.05)
    assert len(server.requests) == 1
