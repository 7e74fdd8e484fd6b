import ast
import os
import re
import runpy
import textwrap
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from presage.errors import ConfigError
from tests.support.command_lines import check_parses, shell_commands

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

SITE = runpy.run_path(str(ROOT / "docs/site/reference_pages.py"))
GENERATED = {ROOT / "docs" / name for name in SITE["GENERATED"]}  # when the site is built


def test_the_tables_page_is_what_the_schemas_say():
    page = runpy.run_path(str(ROOT / "docs/site/make_tables_page.py"))["page"]()

    assert (ROOT / "docs/reference/tables.md").read_text() == page


def test_the_metrics_page_has_the_metrics_of_all_servers():
    page = SITE["metrics_page"]()

    for name in ("presage_requests", "presage_cluster_jobs", "presage_inc_allreduces", "lag_s"):
        assert f"`{name}`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        is_generated = (page.parent / target).resolve() in GENERATED
        assert is_generated or (page.parent / target).exists(), target


README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_and_fits_a_terminal():
    lines = README.splitlines()

    assert len(lines) < 150
    assert max(map(len, lines)) <= 100


def test_every_command_in_the_readme_is_one_of_the_command_line():
    commands = shell_commands(README)

    assert len(commands) >= 4
    for words in commands:
        check_parses(words)


def blocks(page, *languages):
    """Code blocks of a page in one of these languages."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, language, text in found if language in languages]


GUIDES = [page for page in PAGES if page.parent.name not in ("decisions", "benchmarks")]


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_every_command_of_a_guide_is_one_of_the_command_line(page):
    for block in blocks(page, "console", "bash", "sh"):
        lines = [line for line in block.splitlines() if "# exit status" not in line]  # is wrong
        for words in shell_commands("\n".join(lines)):
            if words and "..." not in words and "COMMAND" not in words:
                with missing_files_allowed():
                    check_parses(words)


@contextmanager
def missing_files_allowed():
    try:
        with mock.patch.dict(os.environ):  # which some options set
            yield
    except ConfigError as error:  # of an option that names a file
        assert "No such file" in str(error), error


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_python_in_guides_compiles(page):
    for block in blocks(page, "python"):
        compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_lines_outside_of_tables_and_blocks_have_at_most_120_characters(page):
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    long = [line for line in text.splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long, "\n".join(long)
