"""Write docs/reference/tables.md from the schemas."""

from __future__ import annotations

import sys
from pathlib import Path

from presage.features.columns.schema import FEATURE_SETS
from presage.features.tables.schemas import TABLES

PAGE = Path(__file__).parents[1] / "reference" / "tables.md"


def page() -> str:
    """Return the text of the page."""
    lines = ["# Tables and features", ""]
    lines += [
        "Written by `python docs/site/make_tables_page.py`; a test compares it with the schemas.",
        "",
    ]
    for table in TABLES.values():
        lines += [f"## `{table.name}`", "", f"One row per {', '.join(table.key)}.", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        for column in table.columns:
            empty = "; may be empty" if column.nullable else ""
            lines.append(f"| `{column.name}` | {column.type} | {column.meaning}{empty} |")
        lines.append("")
    for name, columns in FEATURE_SETS.items():
        lines += [f"## Feature set `{name}`", "", "| column | meaning | seen as |", "|---|---|---|"]
        for feature in columns:
            seen = "it is" if feature.log_offset is None else f"log(value + {feature.log_offset:g})"
            twice = (
                "; once more where images are channels-last" if feature.depends_on_layout else ""
            )
            lines.append(f"| `{feature.name}` | {feature.meaning} | {seen}{twice} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(not PAGE.write_text(page()))
