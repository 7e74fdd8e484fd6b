"""``presage inc switch``: a switch in the foreground, and what it reports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from presage.collectives.core.messages import Admission
from presage.collectives.switch.control import SwitchControl
from tests.collectives.switch.ranks import connect, reduce, values_of
from tests.support import in_process
from tests.support.waiting import wait_until

COMMAND = [sys.executable, "-m", "presage", "inc"]


class Foreground:
    """A ``presage inc switch`` that has started."""

    def __init__(self, *words, **environment):
        self.process = subprocess.Popen(
            [*COMMAND, "switch", "--port", "0", "--json", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdout
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, self.process.communicate()
            text += line
        self.found = json.loads(text)
        self.host, self.port = self.found["host"], self.found["port"]

    def end(self, number=signal.SIGTERM):
        """Send a signal; return the exit status and what was printed as an error."""
        self.process.send_signal(number)
        return self.process.wait(20), self.process.communicate()[1]


@pytest.fixture
def start():
    started = []

    def start_one(*words, **environment):
        started.append(Foreground(*words, **environment))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def presage(*words, **environment):
    return in_process.presage("inc", *words, **environment)


def shown_by_process(address):
    command = [*COMMAND, "switch-status", address, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, timeout=60, check=True).stdout)


def has_ended(process_id):
    status = Path(f"/proc/{process_id}/stat")
    return wait_until(lambda: not status.exists() or " Z " in status.read_text(), 10)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_switch_sums_until_a_signal_and_leaves_no_process(start, number):
    switch = start("--slots", "2")
    assert reduce(connect(switch), values_of(2, 100)) == [None, None]
    shown = shown_by_process(f"127.0.0.1:{switch.port}")
    assert (shown["completed"], shown["slots"]) == (1, 2)

    assert switch.end(number) == (0, "")
    assert has_ended(switch.found["process_id"])


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_report_names_the_running_aggregator_and_the_reason(start):
    compiled, python = start(), start("--aggregator", "python")
    without = start(CC="no-such-compiler")

    assert (compiled.found["aggregator"], compiled.found["reason"]) == ("C", "")
    assert python.found["reason"] == "the pure-Python aggregator was requested"
    assert without.found["aggregator"] == "Python"
    assert "no C compiler no-such-compiler is on the PATH" in without.found["reason"]


def test_controlled_switch_is_shown_with_its_admission(start):
    switch = start("--controlled", PRESAGE_SWITCH_TOKEN="secret")
    address = f"127.0.0.1:{switch.port}"
    assert switch.found["is_controlled"]
    with SwitchControl(switch.host, switch.port, "secret") as control:
        before = presage("switch-status", address, PRESAGE_SWITCH_TOKEN="secret").stdout
        control.admit(Admission(control.hello().incarnation, 4, (("bert", 7),)))
        clients = connect(switch, "bert", epoch=7, switch_token="secret")
        after = presage("switch-status", address, PRESAGE_SWITCH_TOKEN="secret").stdout
        for client in clients:
            client.close()

    assert "controlled, no admission yet: 0 jobs" in before
    assert "controlled, admission 4: 1 jobs" in after
    assert "bert" in after and "2 of 2" in after


def test_wrong_token_is_one_line(start):
    switch = start(PRESAGE_SWITCH_TOKEN="secret")
    done = presage("switch-status", f"127.0.0.1:{switch.port}")

    assert done.returncode == 1
    assert done.stderr == "error: the switch refused: the token is not the switch's\n"


def test_the_summary_names_the_listening_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    words = [*COMMAND, "switch", "--port", str(port), "--aggregator", "python"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        said = process.stderr.readline()
        process.terminate()
    assert said.startswith(f"summing at 127.0.0.1:{port}: Python aggregator (the pure-Python")
    assert process.returncode == 0


def test_switch_that_is_killed_is_an_error(start):
    switch = start()
    os.kill(switch.found["process_id"], signal.SIGKILL)

    assert switch.process.wait(20) == 1
    assert "the switch ended by itself; its status is -9" in switch.process.communicate()[1]


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_i10_switch_for_other_machines_needs_a_token(host):
    done = presage("switch", "--host", host, PRESAGE_SWITCH_TOKEN="")

    assert done.returncode == 1
    assert f"a switch at {host} needs a token: set PRESAGE_SWITCH_TOKEN" in done.stderr


def test_port_in_use_and_no_switch_are_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = presage("switch", "--port", port)
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use")
        assert len(done.stderr.splitlines()) == 1
    done = presage("switch-status", f"127.0.0.1:{port}")
    assert done.returncode == 1 and "cannot be reached" in done.stderr
    done = presage("switch-status", "nowhere")
    assert done.returncode == 1 and "is not HOST:PORT" in done.stderr


@pytest.mark.parametrize("words", [["--slots", "0"], ["--port", "70000"], ["--aggregator", "x"]])
def test_options_out_of_range_are_usage_errors(words):
    assert presage("switch", *words).returncode == 2
