"""Tests of the commands of a live cluster: a controller, two agents and jobs as processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from presage.__main__ import main
from presage.cli.output.json_output import message_content
from presage.cli.scheduling.cluster.processes import node_devices
from presage.cli.scheduling.cluster.processes.node_devices import NodeDevices, nodes_of, slots_of
from presage.errors import ConfigError, ServiceError
from presage.features.device.device import find_device
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.client.client import ClusterClient
from presage.schedulers.live.protocol.wire import to_json
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.serving.authentication.local_token import account, local_token_path
from presage.serving.authentication.token_file import add_token
from presage.serving.client import job_features
from presage.serving.client.credentials import Credentials
from tests.features.examples import features
from tests.serving.support.certificates import make_authority, make_certificate
from tests.serving.support.processes import free_port
from tests.support.waiting import wait_until

PRESAGE = [sys.executable, "-m", "presage", "cluster"]
PATIENCE_S = 60.0

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="agents run on Linux alone"),
    pytest.mark.timeout(240),
]


@contextmanager
def process(*words, log):
    with log.open("ab") as output:
        started = subprocess.Popen([*PRESAGE, *words], stderr=output, stdout=output)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


class Asking:
    """Controller that is called by commands, and by a client in this process."""

    def __init__(self, target, *options, credentials=None, folder=Path()):
        self.target, self._options, self._credentials = target, options, credentials
        self.folder = folder

    def words(self, command, *words):
        return [command, "--controller", self.target, *self._options, *words]

    def raw(self, *words):
        return subprocess.run(
            [*PRESAGE, *self.words(*words)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def __call__(self, *words):
        done = self.raw(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def all(self):
        with ClusterClient(self.target, credentials=self._credentials) as client:
            return client.list(ended=True)

    def now(self):
        with ClusterClient(self.target, credentials=self._credentials) as client:
            return client.list()

    def jobs(self):
        return {row.job.job_id: row for row in self.all().jobs}

    def until(self, holds):
        wait_until(lambda: holds(self.all()), PATIENCE_S, self.all, retried=ServiceError)

    def until_phase(self, phase, *names):
        self.until(lambda _: {self.jobs()[name].phase for name in names} == {phase})


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    with process(
        "up", "--port", str(port), "--state", str(folder), "--lease-s", "20", log=folder / "up.log"
    ):
        asking = Asking(f"127.0.0.1:{port}", folder=folder)
        asking.until(lambda found: any(not node.reason for node in found.nodes))
        yield asking
        left = [name for name, row in asking.jobs().items() if not row.ended_unix_s]
        if left:
            asking("cancel", *left)
            asking.until(lambda found: all(row.ended_unix_s for row in found.jobs))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process, which saves a second; return its output."""

    def to_its_end(*words):
        monkeypatch.setattr(sys, "argv", ["presage", "cluster", *words])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return to_its_end


@pytest.fixture
def here(ask, run, monkeypatch):
    """Run commands like ``ask`` in this process, with tables of unlimited width."""
    monkeypatch.setenv("COLUMNS", "300")

    def done(*words):
        status, out, error = run(*ask.words(*words))
        assert not status, error
        return out

    return done


def test_a_job_is_submitted_runs_and_its_output_can_be_read(ask):
    name = ask("submit", "--", "/bin/sh", "-c", "echo hello; echo $PRESAGE_TASK").strip()
    assert name.startswith("sh-")
    ask.until_phase(pb.FINISHED, name)

    assert ask("logs", name).splitlines() == ["hello", f"{name}.1"]
    assert name in ask("ps", "--all")
    assert name not in ask("ps")


def test_explain_shows_the_reason_and_history_of_a_waiting_job(ask, here):
    here("submit", "--name", "first", "--", "sleep", "60")
    ask.until_phase(pb.RUNNING, "first")
    here("submit", "--name", "second", "--", "sleep", "60")

    expected = here("explain", "second")
    assert "second: it waits: no device has enough free capacity" in expected
    assert "it is no. 1 in the queue" in expected
    assert "too little free compute" in expected
    running = json.loads(here("explain", "first", "--json"))
    assert running["status"]["slo_violated"] is False
    assert running["status"]["done"] == 0.0
    (node,) = json.loads(here("ps", "--nodes", "--json"))
    assert node["devices"][0]["free_compute_milli"] == 0
    assert [event["type"] for event in running["history"]] == ["Submitted", "Placed", "Started"]

    found = json.loads(here("when", "first", "second", "--json", "--samples", "3"))
    verdicts = {row["job_id"]: (row["verdict"], row["reason"]) for row in found["answers"]}
    unknown = "its run time is unknown: it has no forecast"
    assert verdicts["first"] == ("started", unknown)
    assert verdicts["second"] == (
        "unknown",
        "it depends on 2 jobs whose run times cannot be predicted: first, second",
    )
    assert found["run_times"] == {"none: it has no forecast": 2}
    assert "second  unknown" in here("when")
    assert "1 device" in here("when", "second", "--gpus", "1", "--policy", "fifo")
    dry = here("submit", "--dry-run", "--name", "third", "--gpus", "2", "--", "sleep", "60")
    assert "third  impossible" in dry
    assert "it needs 2 devices of one node; the largest has 1" in dry
    assert "third" not in here("ps")

    here("cancel", "first", "second")
    ask.until_phase(pb.CANCELLED, "first", "second")


def test_files_of_up_are_private_and_list_the_devices_of_each_node(ask, here):
    (node,) = ask.all().nodes
    private = [path for path in ask.folder.iterdir() if path.is_file() and path.name != "up.log"]
    names = {path.name for path in private}
    assert {"tokens", "n0.token", "n0.log", "controller.log", "controller.db.key"} <= names
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in private} == dict.fromkeys(
        names, 0o600
    )
    user, agent = (line.split() for line in (ask.folder / "tokens").read_text().splitlines())
    assert user[:2] == [account(), "view,submit,admin"]
    assert agent[:2] == ["node-n0", "agent"]
    assert agent[3:] == ["node=n0", f"devices={node.devices[0].kind}:1"]
    assert (
        stat.S_IMODE(local_token_path(int(ask.target.rpartition(":")[2])).stat().st_mode) == 0o600
    )


def test_a_second_up_on_the_same_folder_does_not_affect_the_first(ask, run):
    before = (ask.folder / "tokens").read_bytes()
    status, _, output = run("up", "--state", str(ask.folder), "--port", str(free_port()))

    assert status == 1
    assert "is used by another `presage cluster up`" in output
    assert (ask.folder / "tokens").read_bytes() == before
    assert ask.all().nodes


def test_up_rejects_other_users_of_the_machine(ask, run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    status, out, output = run(*ask.words("ps"))

    assert (status, out) == (1, "")
    assert "requires authentication; pass --token-file" in output


def test_explain_shows_the_submitter_of_a_job(ask, here):
    here("submit", "--name", "whose", "--gpus", "2", "--", "true")
    expected = here("explain", "whose")
    here("cancel", "whose")

    assert f"best-effort; by {account()}" in expected


def test_logs_of_a_waiting_job_fail_without_reporting_a_missing_controller(ask, here, run):
    here("submit", "--name", "gang", "--gpus", "2", "--", "true")
    status, _, output = run(*ask.words("logs", "gang"))
    here("cancel", "gang")

    assert status == 1
    assert "job 'gang' has not run yet" in output
    assert "no controller" not in output
    assert output.count("\n") == 1


def test_a_failing_command_is_retried_as_often_as_requested(ask, here):
    here("submit", "--name", "fails", "--retries", "1", "--", "/bin/sh", "-c", "exit 3")
    ask.until_phase(pb.FAILED, "fails")

    rows = {row["job"]["job_id"]: row for row in json.loads(here("ps", "--all", "--json"))}
    assert rows["fails"]["attempt"] == 2
    assert "ended with status 3" in here("explain", "fails")
    assert "ended with status 3" in here("ps", "--all")
    with ClusterClient(ask.target) as client:
        assert client.list(failed_s=600.0).failed_jobs[0].reason == "ended with status 3"
        assert not client.list().failed_jobs


def test_named_jobs_are_listed_with_reasons_also_after_their_end(ask, here):
    for name, word in (("good", "true"), ("bad", "false")):
        here("submit", "--name", name, "--", word)
    ask.until(lambda found: not {"good", "bad"} & {row.job.job_id for row in ask.now().jobs})

    expected = here("ps", "bad")
    assert "ended with status 1" in expected
    assert "good" not in expected
    assert [row["job"]["job_id"] for row in json.loads(here("ps", "bad", "--json"))] == ["bad"]
    assert "why" not in here("ps")


def test_wait_ends_with_the_last_job_and_names_the_unfinished_ones(ask, here, run):
    for name, word in (("slow", "sleep 2"), ("wrong", "exit 4")):
        here("submit", "--name", name, "--", "/bin/sh", "-c", word)

    status, out, output = run(*ask.words("wait", "slow", "wrong"))
    assert (status, out) == (1, "")
    assert output.startswith("job 'wrong' is failed: ")
    assert "status 4" in output
    assert output.count("\n") == 1
    assert run(*ask.words("wait", "slow", "slow")) == (0, "", "")


def test_a_drained_node_gets_no_jobs_until_the_drain_is_undone(ask, here):
    (node,) = json.loads(here("ps", "--nodes", "--json"))
    assert node["connected"] is True
    here("drain", node["name"])
    here("submit", "--name", "patient", "--", "true")
    reason = f"no node gets jobs: {node['name']} drained"
    wait_until(lambda: reason in here("explain", "patient"))
    assert ask.jobs()["patient"].phase == pb.WAITING

    here("drain", node["name"], "--undo")
    ask.until_phase(pb.FINISHED, "patient")


def test_watch_prints_events_as_they_happen(ask, here):
    watching = subprocess.Popen(
        [*PRESAGE, *ask.words("watch", "seen", "--after", "0", "--json")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        here("submit", "--name", "unseen", "--", "true")
        here("submit", "--name", "seen", "--", "true")
        found = [json.loads(watching.stdout.readline()) for _ in range(4)]
    finally:
        watching.kill()
    assert [event["type"] for event in found] == ["Submitted", "Placed", "Started", "Ended"]
    assert {event["job_id"] for event in found} == {"seen"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("submit",), "no command; write it after the options"),
        (("submit", "--env", "ABSENT", "--", "true"), "--env 'ABSENT': no variable of that name"),
        (("submit", "--env", "A=b", "--", "true"), "--env 'A': other users can see a value on the"),
        (("submit", "--env-file", "/dev/zero", "--", "true"), "/dev/zero: not a regular file"),
        (("submit", "--env-file", "absent", "--", "true"), "--env-file absent: cannot be read"),
        (("submit", "--name", "", "--", "true"), "the name must be 1 to 128"),
        (("submit", "--gpus", "2000", "--", "true"), "jobs[0].gpus=2000"),
        (("submit", "--features", "absent.json", "--", "true"), "absent.json"),
        (("submit", "--batch-size", "4", "--", "true"), "need --features"),
        (("submit", "--priority", "3000000000", "--", "true"), "--priority 3000000000: must be"),
        (("submit", "--priority", "-3000000000", "--", "true"), "--priority -3000000000: must be"),
        (("submit", "--gpus", "3000000000", "--", "true"), "--gpus 3000000000: must be"),
        (("submit", "--retries", "3000000000", "--", "true"), "--retries 3000000000: must be"),
        (("submit", "--iterations", f"{2**63}", "--", "true"), f"--iterations {2**63}: must be"),
        (("submit", "--memory-gib", "1e12", "--", "true"), "--memory-gib 1000000000000.0: must be"),
        (
            ("submit", "--features", "net.onnx", "--", "true"),
            "net.onnx: the number of training",
        ),
        (("submit", "--features", "net:made", "--", "true"), "give --iterations"),
        (("cancel", "missing"), "nothing was cancelled: there is no job 'missing'"),
        (("wait", "missing"), "there is no job 'missing'"),
        (("ps", "missing"), "there is no job 'missing'"),
        (("ps", "--nodes", "job"), "--nodes and names of jobs exclude each other"),
        (("explain", "missing"), "there is no job 'missing'"),
        (("when", "missing"), "there is no job 'missing'"),
        (("when", "--policy", "os:system"), "policy 'os:system' is not registered"),
        (("logs", "missing"), "there is no job 'missing'"),
        (("drain", "nowhere"), "there is no node 'nowhere'"),
        (("drain", "n0", "--evict", "--undo"), "exclude each other"),
        (("ps", "--cert", "a.pem"), "give both --cert and --key"),
        (("ps", "--token-file", "absent"), "absent: no such file"),
    ],
    ids=str,
)
def test_errors_are_one_line(ask, run, words, expected):
    status, _, output = run(*ask.words(*words))

    assert status == 1
    assert expected in output
    assert output.count("\n") == 1


def test_an_argument_that_is_not_utf8_is_rejected_in_one_line(ask, run):
    status, _, output = run(*ask.words("submit", "--name", "a", "--", "true", os.fsdecode(b"\xff")))

    assert status == 1
    assert "'\\udcff' is not valid UTF-8" in output
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--grace-s", "0"), ("--grace-s", "nan"), ("--share", "nan"), ("--memory-gib", "nan")],
)
def test_an_invalid_number_is_rejected_with_its_option(ask, run, option, value):
    status, _, output = run(*ask.words("submit", option, value, "--", "true"))

    assert status in (1, 2)
    assert option in output
    assert "Traceback" not in output


def test_the_name_of_another_job_is_rejected(ask, here, run):
    here("submit", "--name", "once", "--", "true")

    status, _, output = run(*ask.words("submit", "--name", "once", "--", "false"))
    assert status == 1
    assert "job 'once': another job has the same id" in output
    assert output.count("\n") == 1


def test_resubmitting_a_job_is_safe_while_it_waits_and_rejected_after_its_end(ask, here, run):
    again = ask.words("submit", "--name", "again", "--gpus", "2", "--", "true")
    assert run(*again) == (0, "again\n", "")

    status, out, output = run(*again)
    assert (status, out) == (0, "again\n")
    assert "job 'again' was submitted before, and is waiting" in output
    assert output.count("\n") == 1
    here("cancel", "again")
    ask.until_phase(pb.CANCELLED, "again")

    status, out, output = run(*again)
    assert (status, out) == (1, "")
    assert "is cancelled: no new job was started; give another --name" in output


def test_an_unknown_name_among_jobs_to_cancel_cancels_none(ask, here, run):
    here("submit", "--name", "nine", "--gpus", "2", "--", "true")

    status, _, output = run(*ask.words("cancel", "nine", "nope"))
    assert status == 1
    assert "nothing was cancelled: there is no job 'nope'" in output
    assert ask.jobs()["nine"].phase == pb.WAITING
    here("cancel", "nine")


def test_features_with_iterations_need_no_option_for_them(ask, here, tmp_path):
    output = tmp_path / "job.json"
    output.write_text(job_features.to_json(features(iterations=70)))
    here("submit", "--name", "told", "--gpus", "2", "--features", str(output), "--", "true")

    assert ask.jobs()["told"].job.iterations == 70
    here("cancel", "told")


def test_json_output_contains_zero_values_and_stored_json_does_not():
    device = message_content(pb.DeviceStatus(kind="cpu-1", memory_bytes=2**40))

    assert device == {
        "kind": "cpu-1", "memory_bytes": str(2**40), "free_compute_milli": 0,
        "free_memory_bytes": "0", "job_ids": [], "reason": "",
    }  # fmt: skip
    assert message_content(pb.Prediction(runtime_s=float("inf")))["runtime_s"] == "Infinity"
    assert to_json(pb.Job(job_id="a")) == {"job_id": "a"}


def test_commands_report_a_missing_controller():
    done = Asking(f"127.0.0.1:{free_port()}").raw("ps")

    assert done.returncode == 1
    assert "no controller at" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("controller", "--policy", "gang"), "run on Kubernetes"),
        (("controller", "--policy", "shairng"), "did you mean 'sharing'"),
        (("controller", "--policy", "sharing:step_milli=0"), "sharing: step_milli=0"),
        (("controller", "--policy", "gan"), "(a class is MODULE:CLASS)\n"),
        (("controller", "--predictor", "oracle"), "--predictor 'oracle' is unknown; give none, "),
        (("controller", "--predictor", "a:99999"), "--predictor 'a:99999': port 99999 is out of"),
        (("controller", "--predictor-ca", "absent.pem"), "absent.pem: no such file"),
        (("controller", "--risk", "7"), "risk=7.0, must be above 0"),
        (("controller", "--hazards", "absent.json"), "absent.json: cannot be read as a hazard"),
        (("up", "--hazards", "absent.json"), "absent.json: cannot be read as a hazard model"),
        (("agent", "--risk", "7"), "risk=7.0, must be above 0"),
        (("agent", "--report", "none"), "--report 'none' is unknown; give HOST:PORT"),
        (("agent", "--controller", "head"), "--controller (or PRESAGE_CLUSTER) 'head' is not HOST"),
        (("ui", "--controller", "head"), "'head' is not HOST:PORT; write it like 127.0.0.1:50061"),
        (("ps", "--controller", "head"), "'head' is not HOST:PORT; write it like 127.0.0.1:50061"),
        (("up", "--predictor", "oracle"), "--predictor 'oracle' is unknown"),
        (("controller", "--tls-cert", "a.pem"), "give both --tls-cert and --tls-key, or neither"),
        (("agent", "--device", "cpu-1"), "write KIND=0,1 for processors"),
        (("agent", "--device", "cpu-1=0,0"), "duplicate processor number"),
        (("agent", "--device", "cpu-1=99999"), "may not use processor 99999"),
        (("up", "--agents", "4096"), "each agent needs a device"),
    ],
    ids=str,
)
def test_processes_that_cannot_start_report_the_reason_in_one_line(
    tmp_path, monkeypatch, run, words, expected
):
    monkeypatch.chdir(tmp_path)

    status, _, output = run(*words)

    assert status == 1
    assert expected in output
    assert output.count("\n") == 1


def test_gpus_of_a_machine_are_divided_among_its_nodes(monkeypatch):
    gpus = tuple(Slot("h100", 80 * 2**30, cuda=number) for number in range(3))
    monkeypatch.setattr(node_devices, "detected_gpus", lambda _: gpus)

    assert nodes_of(1, None) == [NodeDevices([], {"CUDA_VISIBLE_DEVICES": "0,1,2"}, {"h100": 3})]
    assert nodes_of(2, 40.0) == [
        NodeDevices(["--memory-gib", "40.0"], {"CUDA_VISIBLE_DEVICES": "0,2"}, {"h100": 2}),
        NodeDevices(["--memory-gib", "40.0"], {"CUDA_VISIBLE_DEVICES": "1"}, {"h100": 1}),
    ]
    with pytest.raises(ConfigError, match=r"--agents 4: each agent needs .* 3 GPUs, or processors"):
        nodes_of(4, None)


def test_without_the_gpu_package_processors_are_not_assumed_to_be_the_only_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    with pytest.raises(ConfigError, match=r"pip install 'presage\[cluster\]'"):
        slots_of(None, None)


def test_a_missing_gpu_is_not_a_device():
    with pytest.raises(ConfigError, match="=gpu7: the driver shows no such GPU here"):
        slots_of(["h100=gpu7"], None)


def test_several_processor_devices_divide_the_memory(monkeypatch):
    gpus = tuple(Slot("h100", 80 * 2**30, cuda=number) for number in range(2))
    monkeypatch.setattr(node_devices, "detected_gpus", lambda _: gpus)
    cpu = min(os.sched_getaffinity(0))
    (all_of_it,) = slots_of([f"cpu-1={cpu}"], None)
    one, other, gpu = slots_of([f"cpu-1={cpu}", f"half={cpu}", "h100=gpu1"], None)

    assert one.memory_bytes == other.memory_bytes == all_of_it.memory_bytes // 2
    assert (gpu.cuda, gpu.memory_bytes) == (1, find_device("h100").memory_bytes)
    assert {slot.memory_bytes for slot in slots_of([f"a={cpu}", "h100=gpu0"], 2.0)} == {2 * 2**30}


@pytest.mark.parametrize(
    ("encrypted", "more", "expected"),
    [
        (False, (), "without --tls-cert traffic is not encrypted"),
        (False, ("--allow-remote",), "could call; pass --tokens FILE"),
        (True, (), "could call; pass --tokens FILE"),
    ],
)
def test_a_controller_without_authentication_beyond_loopback_does_not_start(
    tmp_path, encrypted, more, expected
):
    pem, key = make_certificate(tmp_path, "server", make_authority(tmp_path, "authority"))
    options = (*more, *(("--tls-cert", str(pem), "--tls-key", str(key)) if encrypted else ()))
    done = subprocess.run(
        [*PRESAGE, "controller", "--host", "0.0.0.0", "--port", "0", *options],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 1
    assert "is not a loopback address" in done.stderr
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_tokens_and_certificates_determine_permissions(tmp_path, run, monkeypatch):
    authority = make_authority(tmp_path, "authority")
    server, own = (make_certificate(tmp_path, name, authority) for name in ("server", "ann"))
    tokens, port = tmp_path / "tokens", free_port()
    files = {}
    limits = {"node": "n0", "devices": f"cpu-{len(os.sched_getaffinity(0))}:1"}
    for name, roles, more in (
        ("ann", ["submit"], {"run-as": account()}),
        ("node", ["agent"], limits),
        ("eve", ["predict"], {}),
    ):
        files[name] = tmp_path / f"{name}.token"
        files[name].write_text(add_token(tokens, name, roles, more))
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
        *(["--allow-root-jobs"] if os.geteuid() == 0 else []),
    )  # fmt: skip
    with process(*controller, log=tmp_path / "log"), process(*agent, log=tmp_path / "log"):
        shown = Credentials(files["ann"].read_text(), authority[0], *own)
        ann = Asking(target, *mine, "--token-file", str(files["ann"]), credentials=shown)
        ann.until(lambda _: True)
        name = ann("submit", "--", "true").strip()
        ann.until_phase(pb.FINISHED, name)

        refused = ann.raw("drain", "n0")
        assert refused.returncode == 1
        assert "'ann' lacks the role 'admin' that this call requires" in refused.stderr
        for options in (
            (*mine, "--token-file", str(files["eve"])),
            mine,
            (*ca, "--token-file", str(files["ann"])),
        ):
            status, out, output = run(*Asking(target, *options).words("ps"))
            assert (status, out) == (1, "")
            assert ("pass --token-file" in output) == ("--token-file" not in options)

        for variable, path in (
            ("CA", authority[0]), ("CERT", own[0]), ("KEY", own[1]), ("TOKEN_FILE", files["ann"]),
        ):  # fmt: skip
            monkeypatch.setenv(f"PRESAGE_CLUSTER_{variable}", str(path))
        status, out, _ = run(*Asking(target).words("ps", "--all"))
        assert status == 0
        assert name in out
    assert not any(Path(tmp_path / "n0" / "tasks").glob("[!.]*"))
