"""A Slurm whose controller is not root, and jobs of a user."""

from __future__ import annotations

import pwd
import shutil
import tempfile
from pathlib import Path

import pytest

from presage.schedulers.slurm.bridge.bridge_server import SOCKET
from tests.schedulers.slurm.site import FEATURES, GPU, needs_slurm, slurm_site

pytestmark = needs_slurm
USER = pwd.getpwuid(65534).pw_name  # the user without rights of every system


@pytest.fixture
def site():
    with tempfile.TemporaryDirectory(prefix="presage-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with slurm_site(folder, user="slurm") as running:
            yield running


def submit_as_user(site, command):
    words = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/", "--time=600", GPU]
    env = {"SLURM_PRESAGE_JOB": FEATURES}
    words = ["runuser", "-u", USER, "--", *words, f"--wrap={command}"]
    return int(site.cluster.run(*words, env=env))


def test_only_slurms_own_bridge_is_asked_and_users_cannot_change_what_it_wrote(site):
    with site.bridge():  # as root, whose socket slurm may not open
        plain = submit_as_user(site, "true")
        shutil.chown(site.state / SOCKET, "slurm")
        job_id = submit_as_user(site, "sleep 30")

    assert site.note(plain) is None
    assert site.note(job_id).set_minutes == 50
    site.cluster.wait_for(job_id, "RUNNING")
    change = ["scontrol", "update", f"JobId={job_id}"]
    for update in ("TimeLimit=60", "AdminComment=presage: limit=9999 set=50"):
        done = site.cluster.try_run("runuser", "-u", USER, "--", *change, update)
        assert done.returncode == 1, update
    site.cluster.run("runuser", "-u", "slurm", "--", *change, "TimeLimit=60")
    assert site.cluster.job(job_id)["TimeLimit"] == "01:00:00"


def test_the_epilog_records_jobs_as_slurm(site):
    with site.bridge():
        shutil.chown(site.state / SOCKET, "slurm")
        submit_as_user(site, "true")
    (record,) = site.cluster.until(
        lambda: list((site.state / "ended").glob("[!.]*")) or None, "a record of the epilog"
    )

    assert record.stat().st_uid == pwd.getpwnam("slurm").pw_uid
    assert record.stat().st_mode & 0o777 == 0o600
