import re
import runpy
from pathlib import Path

import pytest

from tests.support.command_lines import check_parses, shell_commands

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]

SITE = runpy.run_path(str(ROOT / "docs/site/reference_pages.py"))
GENERATED = {ROOT / "docs" / name for name in SITE["GENERATED"]}  # when the site is built


def test_the_tables_page_is_what_the_schemas_say():
    page = runpy.run_path(str(ROOT / "docs/site/make_tables_page.py"))["page"]()

    assert (ROOT / "docs/reference/tables.md").read_text() == page


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        is_generated = page.parent / target in GENERATED
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
