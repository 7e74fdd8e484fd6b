"""Report page that compares simulations of one trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.schedulers.report.figures import Spread, columns_of, span, spreads_of
from presage.schedulers.report.page_data import drawn
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.simulation import Simulation
from presage.system.text.page_templates import page_environment

_SCRIPTS = ("data.js", "format.js", "navigation.js", "gantt.js", "curves.js", "page.js")
# Marks of a logarithmic time axis, and additional marks on a short one.
_MARKS = {
    "1 s": 1, "10 s": 10, "1 min": 60, "10 min": 600, "1 h": 3600, "6 h": 21600, "1 d": 86400,
    "7 d": 604800, "30 d": 2592000,
}  # fmt: skip
_MORE_MARKS = {
    "3 s": 3, "30 s": 30, "3 min": 180, "30 min": 1800, "2 h": 7200, "12 h": 43200, "3 d": 259200,
}  # fmt: skip
_WIDE = math.log(300)


def render(simulated: Mapping[str, Simulation], *, title: str, facts: Mapping[str, str]) -> str:
    """Return the page as HTML; equal simulations give equal pages.

    Parameters
    ----------
    simulated : mapping of str to Simulation
        Finished simulations of one trace on one cluster, by policy.
    facts : mapping of str to str
        Settings to show under the title: trace, forecasts, seed.
    """
    folder = Path(__file__).parent
    environment = page_environment(folder)
    environment.filters["span"] = span
    ended = {name: one.results for name, one in simulated.items()}
    spreads = spreads_of(ended)
    first = next(iter(simulated.values()))
    return environment.get_template("page.html.j2").render(
        title=title,
        facts={**facts, **_of_cluster(first)},
        policies=list(simulated),
        columns=columns_of({name: compute_metrics(one) for name, one in simulated.items()}),
        spreads=spreads,
        scale=_scale(spreads),
        data=drawn(simulated),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script="\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    )


def _of_cluster(one: Simulation) -> dict[str, str]:
    cluster = one.ledger.cluster
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in cluster.kinds.items())
    nodes = "1 node" if len(cluster.nodes) == 1 else f"{len(cluster.nodes):,} nodes"
    return {"cluster": f"{nodes}, {kinds}", "jobs": f"{len(one.ledger.jobs):,}"}


def _scale(spreads: Sequence[Spread]) -> dict[str, Any]:
    """Return a logarithmic time axis that spans all values, with its labelled marks in %."""
    low = math.log(max(min((one.p10_s for one in spreads), default=1.0), 1.0))
    high = max(math.log(max((one.p90_s for one in spreads), default=1.0)), low + 1.0)
    marks = _MARKS if high - low > _WIDE else _MARKS | _MORE_MARKS

    def at(seconds: float) -> float:
        return round(100 * (math.log(max(seconds, 1.0)) - low) / (high - low), 2)

    return {"at": at, "marks": {n: at(s) for n, s in marks.items() if 0 <= at(s) <= 100}}
