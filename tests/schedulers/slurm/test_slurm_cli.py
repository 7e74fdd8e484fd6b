"""Commands of ``presage slurm`` without a cluster: their files and their errors."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from presage.schedulers.slurm.site_files import EPILOG, JOB_SUBMIT
from presage.schedulers.slurm.slurm_commands import run_slurm
from presage.schedulers.slurm.watch.slurm_job import FORMAT
from presage.schedulers.what_if import what_if
from tests.cli.test_terminal import run
from tests.schedulers.slurm.when.test_slurm_queue import job_line, node_line

BRIDGE = ("slurm", "bridge", "--predictor", "127.0.0.1:1")


def test_site_files_name_the_state_folder_and_slurm_conf(monkeypatch, capsys, tmp_path):
    state = tmp_path / "state"
    assert run(monkeypatch, "slurm", "files", str(tmp_path), "--state", str(state)) == 0

    script, epilog = tmp_path / JOB_SUBMIT, tmp_path / EPILOG
    assert capsys.readouterr().out.split() == [str(script), str(epilog)]
    assert f'SOCKET = "{state}/bridge.sock"' in script.read_text()
    assert f"{state}/ended" in epilog.read_text()
    assert f"{tmp_path}/slurm.conf" in epilog.read_text()
    assert re.findall(r"--Format=\S+", epilog.read_text()) == [FORMAT]
    assert "@" not in epilog.read_text().replace('"$@"', "")
    assert epilog.stat().st_mode & 0o777 == 0o755
    subprocess.run(["sh", "-n", str(epilog)], check=True)


def test_site_files_replace_nothing(monkeypatch, capsys, tmp_path):
    (tmp_path / EPILOG).write_text("of the site")

    assert run(monkeypatch, "slurm", "files", str(tmp_path)) == 1
    assert "exists; name another folder" in capsys.readouterr().err
    assert (tmp_path / EPILOG).read_text() == "of the site"
    assert not (tmp_path / JOB_SUBMIT).exists()


def test_paths_that_need_quoting_are_rejected(monkeypatch, capsys, tmp_path):
    state = str(tmp_path / "a'; rm -rf $HOME")
    assert run(monkeypatch, "slurm", "files", str(tmp_path), "--state", state) == 1
    assert "use a path of letters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "no --device"),
        (["--device", "a100"], "write GRES=KIND"),
        (["--device", "a100=a", "--device", "a100=b"], "each type once"),
        (["--device", "a100=a b"], "has characters other than"),
        (["--device", "a100=a100-80gb", "--quantile", "1"], "quantile=1.0"),
        (["--device", "a100=a100-80gb", "--risk", "0.9"], "risk=0.9"),
    ],
)
def test_wrong_options_of_the_bridge_are_errors(options, error, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, *BRIDGE, "--state", str(tmp_path), *options) == 1
    assert error in capsys.readouterr().err


def test_a_state_folder_that_others_can_write_to_is_rejected(monkeypatch, capsys, tmp_path):
    tmp_path.chmod(0o777)

    options = ["--device", "a100=a100-80gb", "--state", str(tmp_path)]
    assert run(monkeypatch, *BRIDGE, *options) == 1
    assert "chmod 700" in capsys.readouterr().err


def test_commands_say_when_slurm_is_not_installed(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run(monkeypatch, "slurm", "restore") == 1
    assert "squeue cannot be run" in capsys.readouterr().err


def test_the_filters_of_a_users_own_lists_have_no_effect(monkeypatch):
    monkeypatch.setenv("SQUEUE_USERS", "me")
    monkeypatch.setenv("SINFO_PARTITION", "mine")
    names = {line.partition("=")[0] for line in run_slurm(["env"]).splitlines()}
    assert "SLURM_TIME_FORMAT" in names
    assert not [name for name in names if name.startswith(("SQUEUE_", "SINFO_"))]


def test_a_wrong_duration_is_rejected_before_slurm_is_asked(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(monkeypatch, "slurm", "when", "--within", "soon") == 2
    assert "--within" in capsys.readouterr().err


def test_simulations_stop_after_the_limit(monkeypatch, capsys, tmp_path):
    lines = "\n".join(job_line(JobID=str(i), ArrayJobID=str(i), tres_per_job="gres:gpu:1",
                               NumNodes="1") for i in range(1, 4))  # fmt: skip
    outputs = {"squeue": lines, "sinfo": node_line(), "scontrol": "MinJobAge = 300 sec"}
    for name, text in outputs.items():
        (tmp_path / f"{name}.txt").write_text(text)
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/{name}.txt\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(monkeypatch, "slurm", "when", "--json") == 0
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [(row["job_id"], row["verdict"]) for row in answers] == [
        (str(i), "predicted") for i in range(1, 4)
    ]
    monkeypatch.setattr(what_if, "LIMIT_S", -1.0)
    assert run(monkeypatch, "slurm", "when", "1") == 0
    assert "no future could be simulated in time" in " ".join(capsys.readouterr().out.split())
