"""The help of every command, in a terminal of 80 columns."""

from __future__ import annotations

import re

import pytest
from typer.main import get_command

from presage.cli import app as cli
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.stand_in import StandIn


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = {" ".join(path): command for path, command in commands(get_command(cli.app))}


@pytest.mark.parametrize("words", [words for words in ALL if words != "serve"])  # it has argparse
def test_help_says_values_in_words_and_nothing_is_cut(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["presage", *words.split(), "--help"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr().out

    assert end.value.code == 0
    assert not re.search(r"<\w+(\[\w+\])?( range)?>", shown), shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    usage = shown.partition("Usage:")[2].partition("\n")[0]
    assert "[[" not in usage
    assert "......" not in usage
    assert "{" not in usage
    flags = re.findall(r"^  (?:-h, )?--(?:json|help|colocated)\b(.*)$", shown, re.MULTILINE)
    assert all(re.match(r" *$| {2,}[A-Z]", after) for after in flags), flags


@pytest.mark.parametrize("words", ALL)
def test_every_option_and_argument_says_what_it_is(words):
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
