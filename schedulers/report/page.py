"""Report page that compares simulations of one trace."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from presage.schedulers.report.figures import Spread, format_time_span, make_columns, make_spreads
from presage.schedulers.report.page_data import page_data
from presage.schedulers.report.run_comparison import RunComparison
from presage.schedulers.report.size_charts import HEIGHT, WIDTH, make_size_charts
from presage.schedulers.report.ties import best_text, tie_sentences
from presage.schedulers.report.user_table import UserRow, user_rows
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.results.user_metrics import compute_user_metrics
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
_WIDE = math.log(300)  # ratio from which an axis needs no additional marks


def render(
    simulations: Mapping[str, Simulation],
    *,
    title: str,
    facts: Mapping[str, str],
    comparison: RunComparison | None = None,
) -> str:
    """Return the report page as HTML; equal simulations give equal pages.

    Parameters
    ----------
    simulations : mapping of str to Simulation
        Finished simulations of one trace on one cluster, by policy.
    facts : mapping of str to str
        Settings shown under the title: trace, forecasts, seed.
    comparison : RunComparison, optional
        Changes since an earlier run.
    """
    folder = Path(__file__).parent
    environment = page_environment(folder)
    environment.filters |= {"duration": format_time_span, "best_text": best_text}
    spreads = make_spreads({name: run.results for name, run in simulations.items()})
    first = next(iter(simulations.values()))
    metrics = {name: compute_metrics(run) for name, run in simulations.items()}
    return environment.get_template("page.html.j2").render(
        title=title,
        facts={**facts, **_cluster_facts(first)},
        policies=list(simulations),
        columns=make_columns(metrics),
        ties=tie_sentences(metrics),
        comparison=comparison,
        spreads=spreads,
        scale=_scale(spreads),
        sizes=make_size_charts(simulations),
        users=_users(simulations),
        chart={"width": WIDTH, "height": HEIGHT},
        data=page_data(simulations),
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script="\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    )


def _users(simulations: Mapping[str, Simulation]) -> Sequence[UserRow]:
    """Return the rows of users, if there are several."""
    users = {name: compute_user_metrics(run) for name, run in simulations.items()}
    several = any(len(found) > 1 for found in users.values())
    return user_rows(users) if several else ()


def _cluster_facts(run: Simulation) -> dict[str, str]:
    cluster = run.ledger.cluster
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in cluster.kinds.items())
    nodes = "1 node" if len(cluster.nodes) == 1 else f"{len(cluster.nodes):,} nodes"
    return {"cluster": f"{nodes}, {kinds}", "jobs": f"{len(run.ledger.jobs):,}"}


def _scale(spreads: Sequence[Spread]) -> dict[str, Any]:
    """Return a logarithmic time axis that spans all values, with its labelled marks in %."""
    low = math.log(max(min((spread.p10_s for spread in spreads), default=1.0), 1.0))
    high = max(math.log(max((spread.p90_s for spread in spreads), default=1.0)), low + 1.0)
    marks = _MARKS if high - low > _WIDE else _MARKS | _MORE_MARKS

    def position(seconds: float) -> float:
        return round(100 * (math.log(max(seconds, 1.0)) - low) / (high - low), 2)

    positions = {name: position(seconds) for name, seconds in marks.items()}
    visible = {name: at for name, at in positions.items() if 0 <= at <= 100}
    return {"at": position, "marks": visible}
