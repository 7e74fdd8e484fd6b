"""Pages that benchmarks write have short lines outside of tables and code."""

from __future__ import annotations

from benchmarks.markdown import COLUMNS, wrap_paragraphs, write_page

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
