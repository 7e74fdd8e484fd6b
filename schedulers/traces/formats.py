"""The formats that traces are read in, each known by its columns.

To add one: a file with ``COLUMNS`` and ``entry``, and a line in ``FORMATS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from presage.errors import TableError
from presage.schedulers.traces import csv_file, itp, openb, philly
from presage.schedulers.traces import simulation_log as event_log
from presage.schedulers.traces.columns import OPTIONAL, REQUIRED
from presage.schedulers.traces.csv_table import Table, opened
from presage.schedulers.traces.row import Row
from presage.schedulers.traces.trace import Entry, Trace, trace_of
from presage.system.known_names import did_you_mean


class Format(NamedTuple):
    """A table with a job a row.

    Attributes
    ----------
    columns : tuple of str
        That it must have.
    entry : callable
        A row's job, or why the row is left out.
    optional : tuple of str or None
        All others that it may have; None where whatever else is there is left alone.
    from_first : bool
        Whether its clock is its own, so that times count from the first job.
    """

    columns: tuple[str, ...]
    entry: Callable[[Row], Entry | str]
    optional: tuple[str, ...] | None = None
    from_first: bool = True


FORMATS = {
    "our own": Format(REQUIRED, csv_file.entry, OPTIONAL, from_first=False),
    "Philly": Format(philly.COLUMNS, philly.entry),
    "ITP": Format(itp.COLUMNS, itp.entry),
    "openb": Format(openb.COLUMNS, openb.entry),
}


def read_trace(path: Path) -> Trace:
    """Jobs of a csv file of any format that is known, or of a log of `presage simulate`.

    Raises
    ------
    TableError
        The file is missing or of no known format, or a line is wrong; names the line, the column
        and what to mend.
    """
    with opened(path) as file:
        first = next(file, "")
        lines = chain([first], file)
        if first.startswith("{"):
            return trace_of(event_log.entries(path, lines), from_first=False)
        table = Table(path, lines)
        found = _format(path, table.header)
        return trace_of(map(found.entry, table.rows()), from_first=found.from_first)


def _format(path: Path, header: Sequence[str]) -> Format:
    best = max(FORMATS.values(), key=lambda one: _share(one, header))
    missing = [name for name in best.columns if name not in header]
    if missing:
        known = "; ".join(f"{name}: {','.join(one.columns)}" for name, one in FORMATS.items())
        hint = did_you_mean(missing[0], header, otherwise="none is similar.")
        raise TableError(
            f"{path}: no column {missing[0]!r}; {hint} A trace is a log of `presage simulate`, or "
            f"has the columns of one of these: {known}"
        )
    unknown = [name for name in header if name not in {*best.columns, *(best.optional or header)}]
    if unknown:
        hint = did_you_mean(unknown[0], best.optional or (), otherwise="none is similar.")
        raise TableError(
            f"{path}: column {unknown[0]!r} is not known; {hint} Rename or drop it; known are "
            f"{', '.join((*best.columns, *(best.optional or ())))}"
        )
    return best


def _share(one: Format, header: Sequence[str]) -> float:
    return sum(name in header for name in one.columns) / len(one.columns)
