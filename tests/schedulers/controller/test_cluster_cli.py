"""The commands of a live cluster, on real processes: a controller, two agents, jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from presage.serving.callers import add_token
from tests.serving.certificates import make_authority, make_certificate

PRESAGE = [sys.executable, "-m", "presage"]
PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="agents run on Linux alone"),
    pytest.mark.timeout(240),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def process(*words, log):
    with log.open("ab") as said:
        started = subprocess.Popen([*PRESAGE, "cluster", *words], stderr=said, stdout=said)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


class Asking:
    """The command line against one controller."""

    def __init__(self, target, *options):
        self._target, self._options = target, options

    def raw(self, command, *words):
        return subprocess.run(
            [*PRESAGE, "cluster", command, "--controller", self._target, *self._options, *words],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def __call__(self, command, *words):
        done = self.raw(command, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def jobs(self):
        return {row["job"]["job_id"]: row for row in json.loads(self("ps", "--all", "--json"))}

    def until(self, there):
        began_s = time.monotonic()
        while time.monotonic() - began_s < PATIENCE_S:
            done = self.raw("ps", "--all", "--json")
            if done.returncode == 0 and there(
                {row["job"]["job_id"]: row for row in json.loads(done.stdout)}
            ):
                return
            time.sleep(0.3)
        raise AssertionError(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    with process(
        "up", "--port", str(port), "--state", str(folder), "--lease-s", "20", log=folder / "up.log"
    ):
        asking = Asking(f"127.0.0.1:{port}")
        began_s = time.monotonic()
        while '"connected": true' not in asking.raw("ps", "--nodes", "--json").stdout:
            assert time.monotonic() - began_s < PATIENCE_S, (folder / "up.log").read_text()
            time.sleep(0.3)
        yield asking
        left = [name for name, row in asking.jobs().items() if "ended_unix_s" not in row]
        if left:
            asking("cancel", *left)
            asking.until(lambda jobs: all("ended_unix_s" in row for row in jobs.values()))


def test_a_job_is_submitted_runs_and_its_output_can_be_read(ask):
    name = ask("submit", "--", "/bin/sh", "-c", "echo hello; echo $PRESAGE_TASK").strip()
    assert name.startswith("sh-")
    ask.until(lambda jobs: jobs[name]["phase"] == "FINISHED")

    assert ask("logs", name).splitlines() == ["hello", f"{name}.1"]
    assert name in ask("ps", "--all")
    assert name not in ask("ps")


def test_explain_says_why_a_job_waits_and_what_happened_to_it(ask):
    ask("submit", "--name", "first", "--", "sleep", "60")
    ask.until(lambda jobs: jobs["first"]["phase"] == "RUNNING")
    ask("submit", "--name", "second", "--", "sleep", "60")
    ask.until(lambda jobs: "second" in jobs)

    told = ask("explain", "second")
    assert "second: it waits: no device has left what it needs" in told
    assert "it is no. 1 in the queue" in told
    assert "too little compute left" in told
    running = json.loads(ask("explain", "first", "--json"))
    assert [event["what"] for event in running["history"]] == ["Submitted", "Placed", "Started"]

    ask("cancel", "first", "second")
    ask.until(lambda jobs: {jobs[n]["phase"] for n in ("first", "second")} == {"CANCELLED"})


def test_a_job_that_waits_has_no_log_yet_and_the_controller_is_not_said_to_be_missing(ask):
    ask("submit", "--name", "gang", "--gpus", "2", "--", "true")
    done = ask.raw("logs", "gang")
    ask("cancel", "gang")

    assert done.returncode == 1
    assert "job 'gang' has not run yet" in done.stderr
    assert "no controller" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_that_fails_is_run_again_as_often_as_it_is_asked_to(ask):
    ask("submit", "--name", "fails", "--retries", "1", "--", "/bin/sh", "-c", "exit 3")
    ask.until(lambda jobs: jobs["fails"]["phase"] == "FAILED")

    assert ask.jobs()["fails"]["attempt"] == 2
    assert "ended with status 3" in ask("explain", "fails")


def test_a_drained_node_is_given_nothing_until_that_is_undone(ask):
    (node,) = json.loads(ask("ps", "--nodes", "--json"))
    ask("drain", node["name"])
    ask("submit", "--name", "patient", "--", "true")
    time.sleep(1.0)
    assert ask.jobs()["patient"]["phase"] == "WAITING"
    assert "no node is up" in ask("explain", "patient")

    ask("drain", node["name"], "--undo")
    ask.until(lambda jobs: jobs["patient"]["phase"] == "FINISHED")


def test_watch_tells_what_happens_as_it_happens(ask):
    watching = subprocess.Popen(
        [*PRESAGE, "cluster", "watch", "seen", "--controller", ask._target, "--json"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    try:
        time.sleep(2.0)  # it watches from when it is there
        ask("submit", "--name", "unseen", "--", "true")
        ask("submit", "--name", "seen", "--", "true")
        found = [json.loads(watching.stdout.readline()) for _ in range(4)]
    finally:
        watching.kill()
    assert [event["what"] for event in found] == ["Submitted", "Placed", "Started", "Ended"]
    assert {event["job_id"] for event in found} == {"seen"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit",), "no command; write it behind the options"),
        (("submit", "--env", "A", "--", "true"), "--env 'A': write NAME=VALUE"),
        (("submit", "--name", "", "--", "true"), "the name must be 1 to 128"),
        (("submit", "--gpus", "2000", "--", "true"), "jobs[0].gpus=2000"),
        (("submit", "--features", "absent.json", "--", "true"), "absent.json"),
        (("submit", "--batch-size", "4", "--", "true"), "are of --features"),
        (("submit", "--priority", "3000000000", "--", "true"), "--priority 3000000000: must be"),
        (("submit", "--priority", "-3000000000", "--", "true"), "--priority -3000000000: must be"),
        (("submit", "--gpus", "3000000000", "--", "true"), "--gpus 3000000000: must be"),
        (("submit", "--retries", "3000000000", "--", "true"), "--retries 3000000000: must be"),
        (("submit", "--iterations", f"{2**63}", "--", "true"), f"--iterations {2**63}: must be"),
        (("submit", "--memory-gib", "1e12", "--", "true"), "--memory-gib 1000000000000.0: must be"),
        (("cancel", "nobody"), "there is no job 'nobody'"),
        (("explain", "nobody"), "there is no job 'nobody'"),
        (("logs", "nobody"), "there is no job 'nobody'"),
        (("drain", "nowhere"), "there is no node 'nowhere'"),
        (("drain", "n0", "--evict", "--undo"), "contradict each other"),
        (("ps", "--cert", "a.pem"), "give both --cert and --key"),
        (("ps", "--token-file", "absent"), "absent: there is no such file"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_in_one_line(ask, words, told):
    done = ask.raw(*words)

    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_word_of_bytes_that_are_no_text_is_refused_in_one_line(ask):
    done = ask.raw("submit", "--name", "a", "--", "true", os.fsdecode(b"\xff"))

    assert done.returncode == 1
    assert "'\\udcff' is no UTF-8" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--grace-s", "0"), ("--grace-s", "nan"), ("--share", "nan"), ("--memory-gib", "nan")],
)
def test_a_number_that_can_mean_nothing_is_refused_by_its_option(ask, option, value):
    done = ask.raw("submit", option, value, "--", "true")

    assert done.returncode in (1, 2)
    assert option in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_is_taken_by_another_job_is_refused_and_the_same_again_is_not(ask):
    ask("submit", "--name", "once", "--", "true")
    ask("submit", "--name", "once", "--", "true")

    done = ask.raw("submit", "--name", "once", "--", "false")
    assert done.returncode == 1
    assert "job 'once' is another one" in done.stderr


def test_where_no_controller_is_the_command_says_so():
    done = Asking(f"127.0.0.1:{free_port()}").raw("ps")

    assert done.returncode == 1
    assert "no controller at" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("controller", "--policy", "gang"), "run on Kubernetes"),
        (("controller", "--policy", "shairng"), "nearest is 'sharing'"),
        (("controller", "--policy", "sharing:step_milli=0"), "sharing: step_milli=0"),
        (("controller", "--forecast", "nonsense"), "nonsense"),
        (("controller", "--host", "0.0.0.0"), "is not a loopback address"),
        (("controller", "--tls-cert", "a.pem"), "--tls-cert and --tls-key go together"),
        (("agent", "--device", "cpu-1"), "write KIND=0,1 of processors"),
        (("agent", "--device", "cpu-1=0,0"), "a processor twice"),
        (("agent", "--device", "cpu-1=99999"), "may not use processor 99999"),
        (("up", "--agents", "4096"), "give each one"),
    ],
    ids=str,
)
def test_processes_that_cannot_begin_say_why_in_one_line(tmp_path, words, told):
    done = subprocess.run(
        [*PRESAGE, "cluster", *words], capture_output=True, text=True, timeout=60, check=False,
        cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_tokens_and_certificates_say_who_may_do_what(tmp_path):
    authority = make_authority(tmp_path, "authority")
    server, own = (make_certificate(tmp_path, name, authority) for name in ("server", "ann"))
    tokens, port = tmp_path / "tokens", free_port()
    files = {}
    for name, roles in {"ann": ["submit"], "node": ["agent"], "eve": ["predict"]}.items():
        files[name] = tmp_path / f"{name}.token"
        files[name].write_text(add_token(tokens, name, roles))
    target, ca = f"127.0.0.1:{port}", ("--ca", str(authority[0]))
    mine = (*ca, "--cert", str(own[0]), "--key", str(own[1]))
    controller = (
        "controller", "--port", str(port), "--journal", str(tmp_path / "c.db"),
        "--tokens", str(tokens), "--tls-cert", str(server[0]), "--tls-key", str(server[1]),
        "--client-ca", str(authority[0]),
    )  # fmt: skip
    agent = (
        "agent", "--node", "n0", "--controller", target, "--state", str(tmp_path / "n0"), *mine,
        "--token-file", str(files["node"]),
    )  # fmt: skip
    with process(*controller, log=tmp_path / "log"), process(*agent, log=tmp_path / "log"):
        ann = Asking(target, *mine, "--token-file", str(files["ann"]))
        ann.until(lambda jobs: True)
        name = ann("submit", "--", "true").strip()
        ann.until(lambda jobs: jobs[name]["phase"] == "FINISHED")

        refused = ann.raw("drain", "n0")
        assert refused.returncode == 1
        assert "'ann' may not do this: it takes the role 'admin'" in refused.stderr
        for who in (
            Asking(target, *mine, "--token-file", str(files["eve"])),
            Asking(target, *mine),
        ):
            assert who.raw("ps").returncode == 1
        assert Asking(target, *ca, "--token-file", str(files["ann"])).raw("ps").returncode == 1
    assert not any(Path(tmp_path / "n0" / "tasks").glob("[!.]*"))
