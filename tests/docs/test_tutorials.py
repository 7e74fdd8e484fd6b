"""The tutorials, followed by a program: their files are saved and their commands run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from presage.serving.authentication.local_token import local_token_path
from presage.serving.outcomes.outcome_log import read_outcomes
from tests.serving.support.processes import free_port, serving
from tests.support.slurm.cluster import missing_slurm
from tests.support.tutorials import ROOT, Command, File, environment, run, steps
from tests.support.waiting import wait_until


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with what the tutorials use of a checkout."""
    for name in ("examples", "data", "params.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def follow(page, folder, starts, edit=lambda line: line):
    """Save the files of a page, run the commands that begin so, and yield page and real output."""
    for step in steps(page):
        match step:
            case File(name, text):
                (folder / name).write_text(text)
            case Command(line, output) if line.startswith(starts):
                yield line, output, run(edit(line), folder)


def without_trailing_spaces(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_a_policy_is_written_compared_and_checked(checkout):
    ran = list(follow("write_a_policy.md", checkout, ("presage simulate", "python -m pytest")))

    assert len(ran) == 4
    for line, output, found in ran:
        if line.startswith("presage"):
            assert without_trailing_spaces(found) == without_trailing_spaces(output), line
        else:
            assert "1 passed" in found


def test_an_own_script_has_equal_losses_on_one_worker_and_on_two(checkout):
    commands = ("python train.py", "presage elastic run --workers 2 mine")
    state = str(checkout / "state")
    ran = list(
        follow(
            "train_elastically.md",
            checkout,
            commands,
            lambda line: line.replace(" mine ", f" --state {state} mine "),
        )
    )

    assert len(ran) == 2
    for _, output, found in ran:
        assert epochs(found) == epochs(output)


def epochs(text):
    return re.findall(r"^epoch .*$", text, re.MULTILINE)


def test_forecasts_are_requested_in_a_shell_and_from_python(checkout):
    commands = ("presage features", "presage predict", "python forecasts.py")
    with serving("--release", ROOT / "data/pretrained/release", cwd=checkout) as server:
        address = server.target

        def edit(line):
            for file in checkout.glob("*.py"):
                file.write_text(file.read_text().replace("127.0.0.1:50051", address))
            return line.replace("127.0.0.1:50051", address)

        ran = list(follow("ask_for_forecasts.md", checkout, commands, edit))

    assert len(ran) == 3
    for line, output, found in ran:
        assert numbers(found) == pytest.approx(numbers(output), rel=0.02), line


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: .ci/run installs it")
def test_forecasts_are_requested_by_curl(checkout):
    options = ("--release", ROOT / "data/pretrained/release", "--http-port", 0)
    with serving(*options, cwd=checkout) as server:

        def edit(line):
            line = line.replace("127.0.0.1:8080", f"127.0.0.1:{server.http_port}")
            state = str(local_token_path(server.port).parent)
            return line.replace("~/.local/state/presage/tokens/50051", f"{state}/{server.port}")

        commands = ("curl", "presage features", "echo")
        ran = list(follow("../forecasts/http.md", checkout, commands, edit))

    assert sum(line.startswith("curl") for line, *_ in ran) == 5
    for line, output, found in ran:
        shapes = [re.sub(r"\d", "0", shortened(text.strip())) for text in (found, output)]
        assert shapes[0] == shapes[1], line
        assert numbers(found) == pytest.approx(numbers(output), rel=0.02), line


def shortened(text):
    """Return a text whose numbers have two digits after the point."""
    return re.sub(r"(\.\d\d)\d+", r"\1", text)


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.skipif(bool(missing_slurm()), reason=missing_slurm() or "installed")
def test_a_job_gets_its_limit_by_its_forecast_in_slurm(checkout):
    home, ports = checkout / "slurm", {name: str(free_port()) for name in ("serve", "d", "ctld")}
    conf = home / "slurm.conf"

    def edit(text):
        text = text.replace("/tmp/presage-slurm", str(home)).replace("50051", ports["serve"])
        text = text.replace("presage serve", f"presage serve --port {ports['serve']}")
        text = text.replace("--device cpu=cpu-2", "--device cpu=cpu-2 --timeout 2000")
        return re.sub(r"^presage ", f"{sys.executable} -m presage ", text)

    outputs = {}
    with background() as start:
        for step in steps("submit_to_slurm.md"):
            match step:
                case File("slurm.conf", text):
                    more = f"SlurmctldPort={ports['ctld']}\nSlurmdPort={ports['d']}\n"
                    conf.write_text(edit(text) + more)
                case Command(line, _) if line.endswith("&"):
                    start(edit(line).rstrip("& "), checkout, conf)
                case Command("sinfo", _):
                    wait_until(partial(is_serving, int(ports["serve"])))
                    wait_until(lambda: "idle" in run("sinfo", checkout, SLURM_CONF=str(conf)))
                    wait_until((home / "presage" / "bridge.sock").exists)
                    wait_until((home / "presage" / "watcher").exists)
                case Command(line, output) if line.startswith(("scontrol", "squeue")):
                    known = "TimeLimit" if line.startswith("scontrol") else "n1"
                    shows = partial(run, line, checkout, SLURM_CONF=str(conf))
                    wait_until(lambda known=known, shows=shows: known in shows() and running(conf))
                    outputs[line] = shows(), output
                case Command(line, output) if line.startswith("presage outcomes"):
                    wait_until(lambda: list(read_outcomes(home / "outcomes.db")), 120)
                    outputs[line] = run(edit(line), checkout, SLURM_CONF=str(conf)), output
                case Command(line, output) if not line.startswith(("export", "kill", "rm")):
                    outputs[line] = run(edit(line), checkout, SLURM_CONF=str(conf)), output
                    if line.startswith("presage slurm files"):  # a busy machine answers late
                        script = home / "job_submit.lua"
                        patient = script.read_text().replace(
                            "DEADLINE_S = 0.08 ", "DEADLINE_S = 3 "
                        )
                        script.write_text(patient)

    found, shown = next(pair for line, pair in outputs.items() if line.startswith("scontrol"))
    assert re.findall(r" TimeLimit=\S+| limit=\S+| set=\S+", found) == re.findall(
        r" TimeLimit=\S+| limit=\S+| set=\S+", shown
    )


def running(conf):
    return run("squeue --noheader --states=RUNNING", conf.parent, SLURM_CONF=str(conf))


def is_serving(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextmanager
def background():
    """Yield a function that starts a command of a page; end all of them afterwards."""
    running = []

    def start(line, folder, conf):
        variables = environment(SLURM_CONF=str(conf))
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=folder, env=variables, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        running.append(process)

    try:
        yield start
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            process.wait(30)
