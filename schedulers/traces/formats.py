"""Trace formats, each recognized by its columns.

To add one, write a module with ``COLUMNS`` and ``parse_entry`` and add it to ``FORMATS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from presage.errors import TableError
from presage.schedulers.traces import csv_file
from presage.schedulers.traces import simulation_log as event_log
from presage.schedulers.traces.columns import OPTIONAL, REQUIRED
from presage.schedulers.traces.csv_table import Table, open_text
from presage.schedulers.traces.public_formats import itp, openb, philly
from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry, Trace, make_trace
from presage.system.text.known_names import did_you_mean


class Format(NamedTuple):
    """Table format with one job a row.

    Attributes
    ----------
    columns : tuple of str
        Required columns.
    parse_entry : callable
        Returns the job of a row, or the reason to skip the row.
    optional : tuple of str or None
        Optional columns; None if other columns are ignored.
    from_first : bool
        Whether times are counted from the first job.
    """

    columns: tuple[str, ...]
    parse_entry: Callable[[Row], Entry | str]
    optional: tuple[str, ...] | None = None
    from_first: bool = True


FORMATS = {
    "our own": Format(REQUIRED, csv_file.parse_entry, OPTIONAL, from_first=False),
    "Philly": Format(philly.COLUMNS, philly.parse_entry),
    "ITP": Format(itp.COLUMNS, itp.parse_entry),
    "openb": Format(openb.COLUMNS, openb.parse_entry),
}


def read_trace(path: Path) -> Trace:
    """Read a trace from a CSV file in a known format, or from a log of `presage simulate`.

    Raises
    ------
    TableError
        The file is missing, its format is unknown, or a line is invalid; the message names the
        line, the column and the fix.
    """
    with open_text(path) as file:
        first_line = next(file, "")
        lines = chain([first_line], file)
        if first_line.startswith("{"):
            return make_trace(event_log.entries(path, lines), from_first=False)
        table = Table(path, lines)
        trace_format = _find_format(path, table.header)
        entries = map(trace_format.parse_entry, table.rows())
        return make_trace(entries, from_first=trace_format.from_first)


def _find_format(path: Path, header: Sequence[str]) -> Format:
    best = max(FORMATS.values(), key=lambda one: _matching_share(one, header))
    missing = [name for name in best.columns if name not in header]
    if missing:
        known = "; ".join(f"{name}: {','.join(one.columns)}" for name, one in FORMATS.items())
        hint = did_you_mean(missing[0], header, otherwise="none is similar.")
        raise TableError(
            f"{path}: no column {missing[0]!r}; {hint} A trace is a log of `presage simulate`, or "
            f"has the columns of one of these formats: {known}"
        )
    unknown = [name for name in header if name not in {*best.columns, *(best.optional or header)}]
    if unknown:
        hint = did_you_mean(unknown[0], best.optional or (), otherwise="none is similar.")
        raise TableError(
            f"{path}: unknown column {unknown[0]!r}; {hint} Rename or drop it; known columns are "
            f"{', '.join((*best.columns, *(best.optional or ())))}"
        )
    return best


def _matching_share(trace_format: Format, header: Sequence[str]) -> float:
    return sum(name in header for name in trace_format.columns) / len(trace_format.columns)
