"""The example units: systemd accepts them, their commands exist, and services are confined."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from presage.cli.app import app

UNITS = sorted(Path("examples/systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
MOST_EXPOSED = 20  # tenths, of a service that runs no jobs of others; "OK" begins at 50
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze of systemd")


def command_of(unit: Path) -> list[str]:
    """Return the words of ``ExecStart``."""
    text = unit.read_text().replace("\\\n", " ")
    found = re.search(r"^ExecStart=(.+)$", text, re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def test_there_are_units_of_server_controller_and_agent():
    assert [unit.stem for unit in UNITS] == [
        "presage-agent@",
        "presage-controller",
        "presage-serve",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_command_has_no_unknown_option(unit):
    program, *words = command_of(unit)
    assert program == "/opt/presage/bin/presage"
    names = [word for word in words if not word.startswith("-")]
    path = names[: 2 if names[0] == "cluster" else 1]

    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})

    assert shown.exit_code == 0
    for option in (word for word in words if word.startswith("--")):
        assert re.search(rf"{option}\b", shown.output), option


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_the_unit(tmp_path, unit):
    name = unit.name.replace("@", "@node1")
    text = unit.read_text().replace("/opt/presage/bin/presage", sys.executable)
    (tmp_path / name).write_text(re.sub("^Documentation=.*$", "", text, flags=re.MULTILINE))

    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", tmp_path / name], capture_output=True, text=True,
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert name not in done.stderr


@needs_systemd
@pytest.mark.parametrize("name", ["presage-serve", "presage-controller"])
def test_a_service_is_confined(name):
    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=yes", f"--threshold={MOST_EXPOSED}",
         f"examples/systemd/{name}.service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
