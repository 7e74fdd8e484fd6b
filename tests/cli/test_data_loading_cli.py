"""Data stalls that ``presage predict`` shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from presage.serving.client import job_features
from tests.serving.conftest import make_job, make_release
from tests.serving.support.running_server import start_server
from tests.support.in_process import presage

STALLS = ("--sample-load-ms", "3", "--loader-workers", "4")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("release") / "release")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, job = tmp_path_factory.mktemp("jobs"), make_job(batch_size=32)
    loads = replace(job, job=replace(job.job, loads_data=True))
    for name, features in (("job", job), ("loads", loads)):
        (path / f"{name}.json").write_text(job_features.to_json(features))
    return path


def predict(folder, *words, job="job.json", device="cpu-2"):
    return presage("predict", "--job", job, "--device", device, *words, cwd=folder)


def answer(folder, *words, **changes):
    done = predict(folder, *words, "--json", **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["jobs"][0]


def test_a_slow_loader_is_shown_with_its_stall_and_the_workers_that_would_suffice(folder, release):
    ours = ("--release", release.folder)
    shown = predict(folder, *ours, *STALLS, "--sample-cpu-ms", 0).stdout

    assert "mlp-3, batch 32: step with data loading 24." in shown
    assert "limited by the loader workers" in shown
    assert "loader workers would keep the stall within 5% of the step" in shown
    assert "--host-cores" not in shown  # a processor has its own
    assert "stall" not in predict(folder, *ours).stdout


def test_json_has_the_same_forecast_from_a_server(folder, release):
    local = answer(folder, "--release", release.folder, *STALLS, "--sample-cpu-ms", 0)
    with start_server(release) as server:
        served = answer(folder, "--server", server.target, *STALLS, "--sample-cpu-ms", 0)

    found = local["data_loading"]
    assert served["data_loading"] == found
    assert local["step_time_s"] == answer(folder, "--release", release.folder)["step_time_s"]
    assert found["bottleneck"] == "loader workers"
    assert found["step_time_s"]["median"] == pytest.approx(0.024, rel=0.02)
    for key in ("step_time_s", "runtime_s", "stall_s", "stall_share"):
        assert found[key]["low"] <= found[key]["median"] <= found[key]["high"]
    longer_s = found["runtime_s"]["median"] - local["runtime_s"]["median"]
    assert longer_s == pytest.approx(local["iterations"] * found["stall_s"]["median"])
    assert found["sufficient_workers"]["stall_share"] == 0.05


def test_computing_samples_need_cores_of_a_processor_or_the_given_ones_of_a_gpu(folder, release):
    ours = ("--release", release.folder, "--sample-load-ms", 3, "--loader-workers", 64)

    of_processor = answer(folder, *ours)["data_loading"]
    assert of_processor["bottleneck"] == "host cores"
    assert of_processor["sufficient_workers"]["median"] is None
    text = predict(folder, *ours).stdout
    assert "no number of loader workers would keep the stall within 5% of the step" in text
    assert "--host-cores gives them" in predict(folder, *ours, device="v100").stdout
    few, many = (
        answer(folder, *ours, "--host-cores", cores, device="v100")["data_loading"]
        for cores in (2, 4)
    )
    assert few["step_time_s"]["median"] > 1.9 * many["step_time_s"]["median"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--sample-load-ms", "-1"), "a sample takes -0.001 s, must be a number of seconds"),
        (("--sample-load-ms", "nan"), "a sample takes nan s"),
        (("--sample-load-ms", "inf"), "a sample takes inf s"),
        (("--sample-load-ms", "1e300"), "between 0 and 86,400"),
        (("--sample-load-ms", "1", "--sample-cpu-ms", "2"), "occupies a core for 0.002 s"),
        (("--sample-load-ms", "1", "--hand-over-ms", "nan"), "handing a batch over takes nan s"),
        (("--loader-workers", "2"), "add --sample-load-ms"),
        (("--host-cores", "2"), "add --sample-load-ms"),
        (("--sample-load-ms", "1", "--host-cores", "2"), "--host-cores is for GPUs; cpu-2 has 2"),
        (("--sample-load-ms", "1", "--colocated"), "omit --colocated and --scaling"),
        (("--sample-load-ms", "1", "--scaling", "2"), "omit --colocated and --scaling"),
    ],
)
def test_impossible_loading_is_one_line(folder, release, words, error):
    done = predict(folder, "--release", release.folder, *words)

    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert error in done.stderr


@pytest.mark.parametrize(("workers", "limit"), [(-1, "0"), (4097, "4096")])
def test_an_impossible_number_of_workers_names_its_range(folder, release, workers, limit):
    words = ("--sample-load-ms", "1", "--loader-workers", workers)
    done = predict(folder, "--release", release.folder, *words)

    assert done.returncode == 2
    assert "--loader-workers" in done.stderr
    assert f"equal to {limit};" in done.stderr


def test_a_job_whose_step_includes_loading_is_rejected(folder, release):
    done = predict(folder, "--release", release.folder, *STALLS, job="loads.json")

    assert done.returncode == 1
    assert "the predicted step of 'mlp-3' includes loading" in done.stderr
