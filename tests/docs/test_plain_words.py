"""Names, help texts and the README are written in the words of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.help.test_help import ALL, help_of
from tests.support.plain_words import (
    defined_names,
    private_words,
    private_words_of_identifier,
)

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "features", "models", "pipelines", "serving", "schedulers", "training", "collectives",
    "placement", "src/presage", "benchmarks", "examples",
)  # fmt: skip
SUFFIXES = (".py", ".md", ".c", ".proto", ".html", ".css", ".js", ".yaml", ".toml")


def python_files(folder):
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in path.name]


@pytest.mark.parametrize("folder", FOLDERS)
def test_identifiers_have_no_private_words(folder):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}: {word} -> {better}"
        for path in python_files(folder)
        for line, name in sorted(set(defined_names(path)))
        for word, better in private_words_of_identifier(name).items()
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("command", ALL)
def test_help_has_no_private_words(command, monkeypatch, capsys):
    assert not hits(f"presage {command} --help", help_of(command, monkeypatch, capsys))


def test_the_readme_has_no_private_words():
    assert not hits("README.md", (ROOT / "README.md").read_text())


def test_no_file_has_a_word_that_was_given_up():
    pattern = re.compile("fore-?t(?:old|ell)|who[e]ver|no[b]ody|look-?out|run[ ]dry", re.IGNORECASE)
    folders = [*FOLDERS, "docs", "tests"]
    files = [path for name in folders for path in (ROOT / name).rglob("*.*") if path.is_file()]
    texts = [path for path in (*files, *ROOT.glob("*.*")) if path.suffix in SUFFIXES]
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        if path.name != "CHANGELOG.md"
        for match in pattern.finditer(path.read_text())
    ]
    assert len(texts) > 1000
    assert not found, "\n".join(found)


def hits(source, text):
    text = text.replace(" learnt,", ",")  # the policy of that name
    return [
        f"{source}:{number}: {word} -> {better}"
        for number, line in enumerate(text.splitlines(), 1)
        for word, better in private_words(line).items()
    ]


def test_words_are_found_as_components_and_not_as_parts_of_other_words():
    assert list(private_words_of_identifier("_isMended")) == ["mended"]
    assert list(private_words_of_identifier("SENT_AWAY_S")) == ["sent away"]
    assert not private_words_of_identifier("whole_standalone_amendment")
    assert list(private_words("Somebody stood alone.")) == ["Somebody", "alone"]
    assert not private_words("A standalone recommendation")
