"""Names, help texts and the README are written in the words of the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_help import ALL, help_of
from tests.support.plain_words import (
    IDENTIFIER_WORDS,
    TEXT_WORDS,
    defined_names,
    private_words,
    private_words_of_identifier,
)

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "features", "models", "pipelines", "serving", "schedulers", "training", "collectives",
    "placement", "src/presage", "benchmarks", "examples",
)  # fmt: skip


def python_files(folder):
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_have_no_private_words(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {word} -> {IDENTIFIER_WORDS[word]}"
        for path in python_files(folder)
        for line, name in sorted(set(defined_names(path)))
        for word in private_words_of_identifier(name)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("command", ALL)
def test_help_has_no_private_words(command, monkeypatch, capsys):
    assert not hits(f"presage {command} --help", help_of(command, monkeypatch, capsys))


def test_the_readme_has_no_private_words():
    assert not hits("README.md", (ROOT / "README.md").read_text())


def hits(source, text):
    text = text.replace(" learnt,", ",")  # the policy of that name
    return [
        f"{source}:{number}: {word} -> {TEXT_WORDS[word.lower()]}"
        for number, line in enumerate(text.splitlines(), 1)
        for word in private_words(line)
    ]


def test_words_are_found_as_components_and_not_as_parts_of_other_words():
    assert private_words_of_identifier("_isForetold") == ["foretold"]
    assert private_words_of_identifier("SENT_AWAY_S") == ["sent away"]
    assert not private_words_of_identifier("whole_standalone_amendment")
    assert private_words("Nobody stood alone.") == ["Nobody", "alone"]
    assert not private_words("A standalone recommendation")
