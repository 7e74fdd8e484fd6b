"""The help of every command, in a terminal of 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.main import get_command

from presage.__main__ import main
from presage.cli import app as cli
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.cli.test_terminal import run
from tests.schedulers.live.ui.stand_in import StandIn
from tests.support.command_lines import check_parses, shell_commands


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = {" ".join(path): command for path, command in commands(get_command(cli.app))}


def help_of(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["presage", *words.split(), "--help"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("words", ALL)
def test_help_names_values_and_fits_in_80_columns(words, monkeypatch, capsys):
    shown = help_of(words, monkeypatch, capsys)

    assert not re.search(r"<\w+(\[\w+\])?( range)?>", shown), shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    usage = shown.partition("Usage:")[2].partition("\n")[0]
    assert usage.startswith(f" presage {words}".rstrip())
    assert "[[" not in usage
    assert "......" not in usage
    assert "{" not in usage
    flags = re.findall(r"^  (?:-h, )?--(?:json|help|colocated)\b(.*)$", shown, re.MULTILINE)
    assert flags
    assert all(re.match(r" *$| {2,}[A-Z]", after) for after in flags), flags


@pytest.mark.parametrize("words", ALL)
def test_help_has_sections_and_ends_with_examples_that_parse(words, monkeypatch, capsys):
    shown = help_of(words, monkeypatch, capsys)
    titles = re.findall(r"^(\w.*):$", shown, re.MULTILINE)

    assert "Options" in titles
    assert titles[-1] == "Examples"
    commands = shell_commands(shown.partition("\nExamples:\n")[2])
    assert commands
    for command in commands:
        check_parses(command)
        assert " ".join(command).startswith(words)


def test_the_list_of_commands_is_grouped(monkeypatch, capsys):
    titles = re.findall(r"^(\w.*):$", help_of("", monkeypatch, capsys), re.MULTILINE)

    assert titles[1:-1] == [
        "Predict and serve", "Schedule jobs", "Train and release", "Measure and inspect"
    ]  # fmt: skip


@pytest.mark.parametrize("words", ["", "cluster", "models"])
def test_a_group_without_a_command_prints_its_help(words, monkeypatch, capsys):
    expected = help_of(words, monkeypatch, capsys)

    assert run(monkeypatch, *words.split()) == 2
    assert capsys.readouterr() == ("", expected)


def test_the_version_is_printed(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == "presage 0.1.0\n"


def test_help_and_version_import_nothing_heavy():
    program = (
        "import sys; sys.argv = ['presage', 'simulate', '--help']\n"
        "from presage.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('heavy:', [m for m in ('torch', 'pandas', 'onnx', 'mlflow', 'onnxruntime', 'grpc',"
        " 'google.protobuf', 'sklearn', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("heavy: []\n")


def loaded_by(*words: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    program = (
        "import sys; from presage.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_a_command_is_imported_without_the_other_commands():
    loaded = loaded_by("cluster", "ps", "--controller", "127.0.0.1:9")

    assert "presage.cli.scheduling.cluster.listing.ps" in loaded
    assert "presage.schedulers.live.client.client" in loaded
    assert not loaded & {
        "presage.cli.scheduling.cluster.submit", "presage.cli.training.train", "numpy", "pandas"
    }  # fmt: skip


@pytest.mark.parametrize("words", ALL)
def test_every_option_and_argument_has_a_help_text(words):
    silent = [p.name for p in ALL[words].params if not (getattr(p, "help", "") or p.metavar)]

    assert not silent


class Taking(StandIn):
    """Takes jobs."""

    def __init__(self):
        super().__init__(pb.ListResponse())
        self.taken = []

    def Submit(self, request, context):
        self.taken += request.jobs
        return pb.SubmitResponse()


def test_the_inner_double_dash_of_a_jobs_command_is_kept(monkeypatch):
    with Taking() as controller:
        for words in (
            ["prog"],
            ["--", "prog"],
            ["--", "--", "prog"],
            ["prog", "--", "x", "--name"],
        ):
            before = ["cluster", "submit", "--controller", controller.target]
            monkeypatch.setattr("sys.argv", ["presage", *before, *words])
            with pytest.raises(SystemExit) as end:
                cli.main()
            assert end.value.code == 0

    assert [list(job.command) for job in controller.taken] == [
        ["prog"], ["prog"], ["--", "prog"], ["prog", "--", "x", "--name"],
    ]  # fmt: skip
