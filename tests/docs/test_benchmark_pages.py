"""Pages that benchmarks write have short lines, and can be read again by their benchmark."""

from __future__ import annotations

import pytest
from benchmarks.markdown import (
    COLUMNS,
    kept_row,
    section,
    table_column,
    table_rows,
    wrap_paragraphs,
    write_page,
)

PAGE = """\
# Title

## First

text

### Inner

| job | CPU s |
|---|---:|
| a | 1 |
| b | 2.5 |

| other |
|---|
| x |

## Last

end
"""

LONG = "word " * 40


def test_long_paragraphs_and_items_are_wrapped():
    page = f"# {LONG}\n\n{LONG}\n\n- {LONG}\n- short\n\n1. {LONG}"

    lines = wrap_paragraphs(page).splitlines()

    assert lines[0] == f"# {LONG}"
    assert all(len(line) <= COLUMNS for line in lines[1:])
    assert "\n".join(lines).split() == page.split()
    items = [line for line in lines if line.startswith(("- ", "1. "))]
    assert len(items) == 3
    assert lines[lines.index(items[0]) + 1].startswith("  word")
    assert lines[lines.index(items[2]) + 1].startswith("   word")


def test_tables_code_and_short_paragraphs_are_unchanged():
    page = f"| {LONG} |\n\n```text\n{LONG}\n- {LONG}\n```\n\nshort\nlines\n\n![{LONG}](a.png)"

    assert wrap_paragraphs(page) == page


def test_no_line_begins_with_what_would_be_another_item_or_is_inside_of_code():
    for width in range(80, 100):
        text = "x" * width + " - 3 - 4 1. 5 # 6 `two words` " + LONG
        lines = wrap_paragraphs(text).splitlines()

        assert not any(line.startswith(("-", "1.", "#")) for line in lines)
        assert any("`two words`" in line for line in lines)


def test_a_page_ends_with_one_newline(tmp_path):
    path = tmp_path / "pages/page.md"

    write_page(path, ["# Title", "", "text", ""])

    assert path.read_text() == "# Title\n\ntext\n"


def test_a_section_has_its_subsections_and_ends_at_the_next_heading_of_its_level():
    assert section(PAGE, "## First").startswith("text\n\n### Inner")
    assert section(PAGE, "## First").endswith("| x |")
    assert section(PAGE, "## Last") == "end"


def test_the_first_table_of_a_section_is_read_by_row_and_column():
    assert table_rows(PAGE, "## First") == [["job", "CPU s"], ["a", "1"], ["b", "2.5"]]
    assert table_column(PAGE, "### Inner", "CPU s") == ["1", "2.5"]


def test_a_row_of_an_earlier_page_is_marked_once():
    assert kept_row(PAGE, "## First", ["b"]) == ["b †", "2.5"]
    assert kept_row(PAGE.replace("| b |", "| b † |"), "## First", ["b"]) == ["b †", "2.5"]
    with pytest.raises(ValueError, match="no row of"):
        kept_row(PAGE, "## First", ["c"])


@pytest.mark.parametrize(
    ("heading", "column", "error"),
    [
        ("## None", "CPU s", "no heading '## None'"),
        ("## Last", "CPU s", "no table under '## Last'"),
        ("## First", "ms", "no column 'ms'"),
    ],
)
def test_what_a_page_lacks_is_named(heading, column, error):
    with pytest.raises(ValueError, match=error):
        table_column(PAGE, heading, column)
