"""``presage drift``: whether what jobs do is still what the served release promised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from heapq import merge
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from presage.models.drift.drift_test import Row
    from presage.models.release.release import Release
    from presage.serving.outcomes.drift_watch import ReleaseOutcomes
    from presage.serving.outcomes.outcome_log import ReportedOutcome

_AT_ONCE = 256
DRIFTED = 3  # exit status; 1 is an error, 2 a wrong command


def drift(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[LOG...]",
            help="Outcome logs of servers, which may be running, or a folder of *.db.",
            show_default="those of `presage serve`",
        ),
    ] = None,
    release: Annotated[
        str,
        typer.Option(
            metavar="REF|DIR",
            help="As `presage models` takes it, or a release folder.",
            show_default="what `presage serve` serves here",
        ),
    ] = "",
    registry: Annotated[
        str, typer.Option(help="As of `presage models`.", show_default="as of `presage serve`")
    ] = "",
    false_alarm_outcomes: Annotated[
        int, typer.Option(min=1, help="Outcomes between two false alarms, on average, at least.")
    ] = 10_000,
    show_all: Annotated[
        bool, typer.Option("--all", help="Every device and family, also where nothing drifts.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Hold outcomes against what the release that foretold them promised; 3 where it drifted.

    Judged are the outcomes that name the release. Exit status 0: no drift; 3: drift, and it is
    time for `dvc repro`; 1: it cannot be told.
    """
    from presage.models.drift.drift_test import DriftPolicy
    from presage.pipelines.stages.ingest import find_logs
    from presage.serving.outcomes.drift_watch import ReleaseOutcomes
    from presage.serving.outcomes.outcome_log import last_position
    from presage.serving.predictor.predictor import Predictor
    from presage.system.data_folder import data_folder
    from presage.system.progress import counted_progress

    found = find_logs(logs or [data_folder() / "outcomes"])
    with _released(release, registry) as loaded:
        answered = ReleaseOutcomes(Predictor(loaded), DriftPolicy(false_alarm_outcomes))
        rows = sum(map(last_position, found))
        with counted_progress(f"judging {rows:,} outcomes", rows) as step:
            each = _stepping(_each_once(found), step)
            while some := list(islice(each, _AT_ONCE)):
                answered.add(some)
    said = answered.drift.rows()
    drifted = any(row.drift for row in said)
    if as_json:
        document = _document(answered, said, drifted=drifted)
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _print(answered, said, show_all=show_all)
    raise typer.Exit(DRIFTED if drifted else 0)


@contextmanager
def _released(release: str, registry: str) -> Iterator[Release]:
    from presage.errors import RegistryError
    from presage.models.registry.champion import find_champion, lay_down
    from presage.models.registry.registry import Registry
    from presage.models.registry.uri import configured_uri, database_path
    from presage.models.release.pretrained import pretrained_release
    from presage.models.release.release import load_release
    from presage.serving.predictor.release_follower import default_cache

    uri = registry or configured_uri()
    if release and Path(release).is_dir():
        yield load_release(Path(release))
        return
    if release:
        opened = Registry(uri)
        with TemporaryDirectory() as folder:
            version = opened.resolve(release).version
            yield opened.download(version, Path(folder) / "release")
        return
    # Only where no registry was ever made here is what came along what is served.
    database = database_path(uri)
    is_there = bool(registry) or database is None or database.exists()
    champion = find_champion(uri) if is_there else None
    if champion is not None:
        yield load_release(lay_down(uri, champion, default_cache()))
    elif registry:
        raise RegistryError(f"{uri}: no release is champion; promote one, or name one by --release")
    else:
        yield load_release(pretrained_release())


def _each_once(paths: Iterable[Path]) -> Iterator[ReportedOutcome]:
    """Rows of all logs by the time they came; what was told to two replicas once."""
    from presage.serving.outcomes.outcome_log import read_outcomes

    seen: set[str] = set()
    for row in merge(*map(read_outcomes, paths), key=lambda row: row.received_at_unix_s):
        if row.idempotency_key not in seen:
            seen.add(row.idempotency_key)
            yield row


def _stepping(rows: Iterable[ReportedOutcome], step: Any) -> Iterator[ReportedOutcome]:
    for row in rows:
        step()
        yield row


def _document(answered: ReleaseOutcomes, rows: list[Row], *, drifted: bool) -> dict[str, Any]:
    return {
        "release": answered.predictor.release_id,
        "drift": drifted,
        **_counts(answered),
        "rows": [asdict(row) for row in rows],
    }


def _counts(answered: ReleaseOutcomes) -> dict[str, int]:
    return {
        "outcomes": answered.outcomes,
        "of_other_releases": answered.other_releases,
        "of_no_release": answered.without_release,
        "refused": answered.refused,
        "never_reported_alone": answered.missing,
    }


def _print(answered: ReleaseOutcomes, rows: list[Row], *, show_all: bool) -> None:
    from presage.system.terminal import Console, Table, box

    console = Console()
    title = f"outcomes beside the forecasts of release {answered.predictor.release_id}"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in ("jobs", "runs", "off %", "in 80 %", "ratio", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drift", no_wrap=True)
    quantity = ""
    for row in rows:
        if not (show_all or row.drift or not row.slice_name):
            continue
        if row.quantity != quantity:
            quantity = row.quantity
            table.add_section()
            table.add_row(_NAMES[quantity], style="bold")
        table.add_row(
            f" {row.slice_name or 'all'}", f"{row.jobs:,}", f"{row.runs:,}",
            _beside(row.mape, row.promised_mape), _beside(row.coverage, row.promised_coverage),
            _times(row.ratio), _times(row.change), row.drift, style="red" if row.drift else None,
        )  # fmt: skip
    if rows:
        console.print(table)
    judged = answered.outcomes - answered.other_releases - answered.without_release
    if answered.outcomes and not judged:
        console.print("nothing can be told of this release yet: no outcome names it")
    console.print(f"{judged:,} of {answered.outcomes:,} outcomes name this release")
    if answered.without_release:
        console.print(
            f"{answered.without_release:,} name no release, and are not judged: report the "
            "release_id that came with the forecast"
        )
    if answered.refused:
        console.print(f"{answered.refused:,} are of no job that can be: `presage outcomes ingest`")
    if answered.missing:
        console.print(
            f"{answered.missing:,} of jobs with neighbours tell no slowdown: the job was never "
            "reported alone before"
        )
    drifted = [row for row in rows if row.drift]
    if drifted:
        console.print(
            f"drift: {len(drifted)} of {len(rows)}; `dvc repro` learns from what was reported"
        )


_NAMES = {
    "compute_utilization": "utilization",
    "memory_bytes": "memory",
    "step_time_s": "step time",
    "slowdown": "slowdown",
    "runtime_s": "runtime",
    "in_domain": "in domain",
}


def _beside(found: float | None, promised: float | None) -> str:
    told = "-" if found is None else f"{found:.3g}"
    return told if promised is None else f"{told} ({promised:.2g})"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
