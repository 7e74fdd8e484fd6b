"""The whole path with real processes: each ended job is one outcome, whatever is killed."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from presage.schedulers.slurm.site_files import EPILOG
from presage.schedulers.slurm.watch.ended_jobs import FOLDER
from presage.schedulers.slurm.watch.watcher import HEARTBEAT
from presage.serving.outcomes.outcome_log import read_outcomes
from presage.serving.v1 import prediction_pb2 as pb
from tests.schedulers.slurm.site import needs_slurm, slurm_site
from tests.serving.support.processes import free_port
from tests.support.waiting import stays_true, wait_until

pytestmark = needs_slurm

ROOT = Path(__file__).parents[4]
RELEASE = ROOT / "data" / "pretrained" / "release"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with slurm_site(tmp_path_factory.mktemp("slurm")) as running:
        yield running


class Processes:
    """Server, bridge and watcher of a site as processes, which can be killed and restarted."""

    def __init__(self, site, folder):
        self.site, self.log, self.port = site, folder / "outcomes.db", free_port()
        self.err = folder / "err"
        state = ["--state", str(site.state)]
        target = f"127.0.0.1:{self.port}"
        self.commands = {
            "serve": ["serve", "--release", str(RELEASE), "--port", str(self.port),
                      "--outcomes", str(self.log)],
            "bridge": ["slurm", "bridge", "--predictor", target, "--device", "cpu=cpu-2",
                       "--timeout", "2000", *state],
            "watch": ["slurm", "watch", "--report", target, "--poll", "0.3", *state],
        }  # fmt: skip
        self.running = {}

    def start(self, name):
        with self.err.open("ab") as err:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "presage", *self.commands[name]],
                env=self.site.cluster.environment, stdout=err, stderr=err,
            )  # fmt: skip

    def kill(self, name):
        self.running[name].kill()
        self.running[name].wait()

    def stop(self):
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()
            process.wait()

    def is_serving(self):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return None

    def outcomes(self):
        """Return the outcomes that are in the server's log."""
        if not self.log.exists():
            return []
        return [pb.Outcome.FromString(row.message) for row in read_outcomes(self.log)]

    def reports(self):
        """Return the number of outcomes of each job."""
        return Counter(int(row.idempotency_key.split("/")[-2]) for row in self.outcomes())

    def count(self, number, timeout_s=120):
        """Wait for this number of outcomes; return all."""
        wait_until(
            lambda: len(self.outcomes()) >= number,
            timeout_s,
            lambda: f"{len(self.outcomes())} outcomes\n{self.err.read_text()}",
            pause_s=0.2,
        )
        return self.outcomes()


@contextmanager
def processes(site, folder):
    running = Processes(site, folder)
    with ExitStack() as stack:
        stack.callback(running.stop)
        running.start("serve")
        site.cluster.until(running.is_serving, "the server", timeout_s=90)
        running.start("watch")
        running.start("bridge")
        site.cluster.until(
            lambda: (site.state / "bridge.sock").exists() or None, "the bridge", timeout_s=90
        )
        site.cluster.until(
            lambda: (site.state / HEARTBEAT).exists() or None, "the watcher", timeout_s=90
        )
        yield running


def submit(site, *arguments):
    """Submit a job as a user does; return its id."""
    command = [
        sys.executable, "-m", "presage", "slurm", "sbatch", "--job", "job.json", "--",
        "--parsable", "--output=/dev/null", *arguments,
    ]  # fmt: skip
    return int(site.cluster.run(*command))


@pytest.fixture(scope="module")
def job_file(site):
    text = subprocess.run(
        [sys.executable, "-m", "presage", "features", "examples.my_model:classifier",
         "--iterations", "4000", "--json"],
        check=True, capture_output=True, text=True, cwd=ROOT, env=os.environ,
    ).stdout  # fmt: skip
    path = site.cluster.folder / "job.json"
    path.write_text(text)
    return json.loads(text)


def test_a_job_is_predicted_run_and_reported(site, tmp_path, job_file):
    with processes(site, tmp_path) as running:
        good = submit(site, "--time=10:00:00", "--wrap=sleep 3")
        bad = submit(site, "--wrap=exit 3")
        cancelled = submit(site, "--begin=now+1hour", "--wrap=true")
        site.cluster.run("scancel", str(cancelled))
        outcomes = running.count(2)
        assert stays_true(lambda: len(running.outcomes()) == 2, 1.0)

    note = site.note(good)
    assert note.own_minutes == 600
    assert 5 < note.set_minutes < 60
    assert site.cluster.job(good)["MinMemoryNode"].endswith("M")
    by_id = {row.idempotency_key.split("/")[-2]: row for row in outcomes}
    done, failed = by_id[str(good)], by_id[str(bad)]
    assert done.device.kind == "cpu-2"
    assert done.release_id == note.release_id
    assert done.job.name == job_file["name"]
    assert 3 <= done.runtime_s <= 6
    assert (done.failure, failed.failure) == ("", "crash")
    assert not failed.HasField("runtime_s")


def break_epilog(site):
    """Make each second run of the epilog end by SIGKILL before its record has its name."""
    path = site.cluster.folder / EPILOG
    text = path.read_text()
    assert text.count("  mv ") == 1
    path.write_text(text.replace("  mv ", "  { [ $(($$ % 2)) = 0 ] || kill -9 $$; } &&\n  mv "))


def test_each_job_is_one_outcome_after_kills_of_everything(site, tmp_path, job_file):
    seed = random.Random(3)
    break_epilog(site)
    with processes(site, tmp_path) as running:
        first = submit(site, "--wrap=true")
        environment = {"SLURM_PRESAGE_JOB": features_of(site)}
        job_ids = [first]
        killed: Counter[str] = Counter()
        until_s = time.monotonic() + 25
        while time.monotonic() < until_s:
            job_ids += [
                site.cluster.submit(f"sleep {seed.random():.1f}", env=environment) for _ in range(2)
            ]
            name = seed.choice(["serve", "bridge", "watch", "none"])
            if name != "none":
                running.kill(name)
                killed[name] += 1
                running.start(name)
            time.sleep(seed.uniform(0.2, 1.5))
        noted = [job_id for job_id in job_ids if site.note(job_id) is not None]
        once = dict.fromkeys(noted, 1)
        wait_until(lambda: {job_id: running.reports()[job_id] for job_id in noted} == once, 120)
        running.kill("watch")
        running.start("watch")  # it reads all ended jobs again
        assert stays_true(
            lambda: {job_id: running.reports()[job_id] for job_id in noted} == once,
            4.0,
            pause_s=0.2,
        )
        reported = running.reports()

    assert min(killed[name] for name in ("serve", "bridge", "watch")) >= 2, killed
    assert list((site.state / FOLDER).glob(".*")), "no epilog was killed"
    assert len(noted) >= 5
    assert set(reported) - set(noted) <= set(range(first))  # jobs of an earlier test


def features_of(site):
    from presage.schedulers.slurm.feature_text import to_text
    from presage.serving.client.job_features import read_json_file

    return to_text(read_json_file(site.cluster.folder / "job.json"))


def test_a_job_that_ends_while_the_watcher_is_away_for_long_is_reported(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("forgetful")
    with slurm_site(folder, settings=("MinJobAge=2",)) as site:
        make_job_file(site)
        with processes(site, tmp_path) as running:
            running.kill("watch")
            environment = {"SLURM_PRESAGE_JOB": features_of(site)}
            ends = {"true": "", "exit 4": "crash"}
            job_ids = [site.cluster.submit(command, env=environment) for command in ends]
            site.cluster.until(
                lambda: forgotten(site, job_ids), "jobs that Slurm has forgotten", 90
            )
            running.start("watch")
            outcomes = running.count(2)

    assert sorted(row.failure for row in outcomes) == sorted(ends.values())


def forgotten(site, job_ids):
    done = [site.cluster.try_run("scontrol", "show", "job", str(job_id)) for job_id in job_ids]
    return True if all(one.returncode for one in done) else None


def make_job_file(site):
    from presage.serving.client.job_features import to_json
    from tests.features import examples

    (site.cluster.folder / "job.json").write_text(to_json(examples.features()))
