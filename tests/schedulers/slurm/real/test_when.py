"""``presage slurm when`` on a real Slurm."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import pytest

from presage.schedulers.slurm.job_note import JobNote
from tests.schedulers.slurm.site import needs_slurm
from tests.support.slurm.cluster import slurm

pytestmark = needs_slurm

NOTE = JobNote(own_minutes=60, set_minutes=60, predicted_s=600, median_s=600, features="d" * 64)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    settings = ("DefMemPerCPU=100",)
    with slurm(tmp_path_factory.mktemp("when"), nodes=2, gpus=2, settings=settings) as running:
        yield running


def asked(cluster, *arguments: str):
    env = {"SQUEUE_USERS": "daemon"}  # a user's own filter has no effect
    done = cluster.try_run(sys.executable, "-m", "presage", "slurm", "when", *arguments, env=env)
    return done.returncode, done.stdout, done.stderr


def noted(cluster, job_id: int, note: JobNote) -> None:
    cluster.run("scontrol", "update", f"JobId={job_id}", f"AdminComment={note.text()}")


def test_starts_follow_notes_limits_and_arrays(cluster):
    running = cluster.submit("sleep 600", "--gres=gpu:a100:2", "--nodes=2")
    cluster.wait_for(running, "RUNNING")
    noted(cluster, running, NOTE)
    first = cluster.submit("sleep 600", "--gres=gpu:1", "--array=1-3")
    held = cluster.submit("sleep 600", "--gpus=1", "--hold")

    code, out, err = asked(cluster, "--json", "--samples", "20")
    assert code == 0, err
    found = {row["job_id"]: row for row in json.loads(out)["answers"]}
    assert list(found) == [f"{first}_{i}" for i in (1, 2, 3)]
    used_s = time.time() - _unix_s(cluster, running)
    for row in found.values():
        assert row["verdict"] == "predicted"
        assert row["start"]["median_s"] == pytest.approx(600 - used_s, abs=30)

    code, out, err = asked(cluster, str(held), str(first))
    assert code == 0, err
    assert "Slurm's reason is JobHeldUser" in out
    assert f"{first}_2" in out


def test_bad_questions_get_one_line(cluster):
    assert asked(cluster, "no-such-job")[0] == 1
    assert "neither waits nor runs on GPUs" in asked(cluster, "no-such-job")[2]
    job_id = cluster.submit("sleep 600", "--gres=gpu:1")
    code, _, err = asked(cluster, str(job_id), "--kind", "h100")
    assert code == 1
    assert "'h100'" in err and len(err.strip().splitlines()) == 1


def test_a_machine_without_slurm_is_told_so(cluster):
    environment = {"PATH": "/nowhere"}
    done = cluster.try_run(sys.executable, "-m", "presage", "slurm", "when", env=environment)
    assert done.returncode == 1
    assert done.stderr.startswith("error: squeue cannot be run")


def _unix_s(cluster, job_id: int) -> int:
    text = cluster.run(
        "squeue", "--noheader", f"--jobs={job_id}", "--Format=StartTime:20",
        env={"SLURM_TIME_FORMAT": "%s"},
    )  # fmt: skip
    return int(text)


def test_older_notes_have_no_median():
    text = replace(NOTE, median_s=None).text()
    assert "median" not in text
    parsed = JobNote.parse(text)
    assert parsed is not None
    assert parsed.median_s is None
