"""Commands of ``presage slurm`` without a cluster: their files and their errors."""

from __future__ import annotations

import subprocess

import pytest

from presage.schedulers.slurm.site_files import EPILOG, JOB_SUBMIT
from tests.cli.test_terminal import run

BRIDGE = ("slurm", "bridge", "--predictor", "127.0.0.1:1")


def test_site_files_name_the_state_folder_and_slurm_conf(monkeypatch, capsys, tmp_path):
    state = tmp_path / "state"
    assert run(monkeypatch, "slurm", "files", str(tmp_path), "--state", str(state)) == 0

    script, epilog = tmp_path / JOB_SUBMIT, tmp_path / EPILOG
    assert capsys.readouterr().out.split() == [str(script), str(epilog)]
    assert f'SOCKET = "{state}/bridge.sock"' in script.read_text()
    assert f"{state}/ended" in epilog.read_text()
    assert f"{tmp_path}/slurm.conf" in epilog.read_text()
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
