"""Tests that a job's secrets are in no command line, controller file or response."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from presage.cli.scheduling.cluster.variables import job_variables
from presage.errors import ConfigError
from presage.schedulers.live.agent.tasks.processes import pids
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.cluster import PRESAGE, LiveCluster, until

SECRETS = {"FROM_HERE": "hunter2-of-the-environment", "FROM_FILE": "hunter2 of the file = 1"}


def test_variables_come_from_the_environment_and_from_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FROM_HERE", "here")
    file = tmp_path / "variables"
    file.write_text("# secrets\n\nFROM_FILE=a = b#c \nFROM_HERE=no\n")
    file.chmod(0o600)

    assert job_variables(["FROM_HERE"], file) == {"FROM_FILE": "a = b#c ", "FROM_HERE": "here"}
    assert capsys.readouterr().err == ""
    file.chmod(0o644)
    job_variables([], file)
    assert "other users can read it; chmod 600" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["hunter2", "=hunter2"])
def test_an_error_names_an_invalid_line_without_its_content(tmp_path, line):
    file = tmp_path / "variables"
    file.write_text(f"A=1\n{line}\n")

    with pytest.raises(ConfigError, match=r"variables:2: must be NAME=VALUE$"):
        job_variables([], file)


@pytest.mark.timeout(240)
def test_values_appear_in_no_command_line_and_no_file_of_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "variables"
    file.touch(0o600)
    file.write_text(f"FROM_FILE={SECRETS['FROM_FILE']}\n")
    monkeypatch.setenv("FROM_HERE", SECRETS["FROM_HERE"])
    cluster = LiveCluster(tmp_path)
    try:
        cluster.environment["FROM_HERE"] = ""  # of controller and agents
        cluster.up("n0")
        seen = tmp_path / "seen"
        command = ["/bin/sh", "-c", f'printf "%s\\n" "$FROM_HERE" "$FROM_FILE" > {seen}; sleep 60']
        done = subprocess.run(
            [*PRESAGE, "submit", "--controller", cluster.target, "--name", "secret",
             "--env", "FROM_HERE", "--env-file", str(file), "--", *command],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        until(seen.exists)
        until(lambda: seen.read_text().splitlines() == list(SECRETS.values()))

        words = b"".join(_command_line(pid) for pid in pids())
        files = [path for path in Path(cluster.journal).parent.iterdir() if path.is_file()]
        assert len(files) >= 3
        found = cluster.all().SerializeToString()
        with cluster.client as client:
            found += client.explain("secret").SerializeToString()
        for secret in SECRETS.values():
            assert secret.encode() not in words
            assert secret.encode() not in found
            assert [path for path in files if secret.encode() in path.read_bytes()] == []
            assert secret not in cluster.log("controller").read_text()
    finally:
        cluster.close()


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.timeout(240)
def test_a_restarted_controller_retains_the_environment_of_a_job(tmp_path: Path):
    cluster = LiveCluster(tmp_path)
    try:
        cluster.controller()
        seen = tmp_path / "seen"
        job = pb.Job(
            job_id="secret", command=["/bin/sh", "-c", f'printf "$A" > {seen}'],
            environment={"A": "hunter2"},
        )  # fmt: skip
        cluster.submit(job)
        cluster.kill("controller")
        cluster.controller()
        cluster.agent("n0")
        assert cluster.over("secret") == {"secret": pb.FINISHED}
        assert seen.read_text() == "hunter2"
    finally:
        cluster.close()
