"""Command line of the benchmark: reads tables, trains networks, writes the page."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.intervals.coverage import Found, Known, compare, where_known
from benchmarks.intervals.page import lines_of, page
from benchmarks.intervals.tables import TABLES
from benchmarks.markdown import write_page

PAGE = Path("docs/benchmarks/intervals.md")


def main() -> None:
    """Write the page, or print the tables whose titles are given."""
    parser = argparse.ArgumentParser(description="Coverage of intervals where something is new")
    parser.add_argument("datasets", type=Path, help="folder of the sources' files")
    parser.add_argument("titles", nargs="*", help="tables to print, instead of writing the page")
    args = parser.parse_args()
    found: list[Found] = []
    known: list[Known] = []
    for table in TABLES:
        if args.titles and table.title not in args.titles:
            continue
        data = table.read(args.datasets)
        known.append(where_known(data, table.title))
        found += [compare(data, table.title, split) for split in table.splits]
        for one in found[-len(table.splits) :]:
            sys.stderr.write("\n".join(lines_of(one)) + "\n")
    lines = page(found, known)
    if args.titles:
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        write_page(PAGE, lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
