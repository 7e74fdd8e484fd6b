"""Groups of commands that are imported one by one."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from presage.cli.command import group
from presage.cli.help_text import command_of, page_of
from presage.cli.lazy_group import LazyCommands, lazy_commands

FILE = """\
from presage.cli.command import add_command, command, group

@command(examples="presage NAME", context_settings={"ignore_unknown_options": True})
def say(words: list[str]) -> None:
    '''Print words.'''
    print("NAME", *words)

app = group("More.", examples="presage more")
add_command(app, say)
"""
PANELS = {"Speak": {"b": "b:say", "more": "more:app"}, "Again": {"a": "a:say"}}


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A group whose commands are defined in files that nothing has imported."""
    package = tmp_path / "spoken"
    package.mkdir()
    for name in ("a", "b", "more"):
        (package / f"{name}.py").write_text(FILE.replace("NAME", name))
    monkeypatch.syspath_prepend(tmp_path)
    yield group("Print words.", examples="presage b", commands=lazy_commands("spoken", PANELS))
    for name in [name for name in sys.modules if name.startswith("spoken")]:
        del sys.modules[name]


def test_the_command_that_runs_is_imported_and_no_other(app):
    ran = CliRunner().invoke(app, ["b", "hello", "-5"])

    assert ran.output == "b hello -5\n"
    assert {name for name in sys.modules if name.startswith("spoken.")} == {"spoken.b"}


def test_a_group_in_a_group_is_imported_alike(app):
    assert CliRunner().invoke(app, ["more", "say", "hello"]).output == "more hello\n"


def test_help_lists_all_commands_in_their_order(app):
    command = command_of(app)
    with command.make_context("words", ["b", "hello"]) as context:
        lines = [line.strip() for line in page_of(command, context).splitlines()]
    titles_and_names = [line.split()[0] for line in lines if line.split()[:1]]

    places = [titles_and_names.index(word) for word in ("Speak:", "b", "more", "Again:", "a")]
    assert places == sorted(places)


def test_an_error_of_a_module_is_not_an_unknown_command(app, tmp_path):
    (tmp_path / "spoken" / "b.py").write_text("import os\nos.environ['ABSENT']\n")

    with pytest.raises(KeyError, match="ABSENT"):
        CliRunner().invoke(app, ["b"], catch_exceptions=False)


def test_an_unknown_command_imports_nothing(app):
    ran = CliRunner().invoke(app, ["c"])

    assert ran.exit_code == 2
    assert "No such command 'c'" in ran.output
    assert not [name for name in sys.modules if name.startswith("spoken.")]


def test_commands_are_a_mapping(app):
    commands = LazyCommands("spoken", PANELS)
    loaded: list[Any] = []
    commands.on_load = loaded.append

    assert list(commands) == ["b", "more", "a"]
    assert len(commands) == 3
    assert commands["a"] is commands.get("a")
    assert loaded == [commands["a"]]
    del commands["a"]
    assert commands.get("a") is None
