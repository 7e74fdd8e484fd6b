"""``presage models``: what is registered, which release is served, and the hand on the lever."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from presage.models.registry import RegisteredRelease, Registry

app = typer.Typer(
    help="List, compare, promote and roll back releases.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Uri = Annotated[
    str,
    typer.Option(
        "--registry",
        help="sqlite:///PATH or http(s)://HOST; else PRESAGE_REGISTRY, else params.yaml.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF", help="champion, challenger, previous; a version; a release id's start."
    ),
]

SHIPPED = "mlp"  # in a release's metrics, beside the baselines
# What a release was made of, in the order of `diff`.
INGREDIENTS = ("data_digest", "schema_hash", "feature_set", "levels", "trained_devices", "versions")

Figures = dict[tuple[str, str, str], float]


@app.command("list")
def list_releases(registry: Uri = "", as_json: AsJson = False) -> None:
    """List releases, newest first."""
    releases = _open(registry).versions()[::-1]
    if as_json:
        _print_json([_facts(release) for release in releases])
    elif not releases:
        typer.echo("no release yet; `dvc repro` registers one")
    else:
        _print_releases(releases)


@app.command()
def show(
    ref: Ref,
    registry: Uri = "",
    as_json: AsJson = False,
    download: Annotated[
        Path | None, typer.Option(help="Lay the release folder down here, files checked.")
    ] = None,
) -> None:
    """Show a release: its metrics, its devices, what it was made of."""
    opened = _open(registry)
    release = opened.resolve(ref)
    manifest = opened.manifest(release.version)
    if download is not None:
        opened.download(release.version, download)
    if as_json:
        folder = None if download is None else str(download)
        more = {"decision": release.decision, "manifest": manifest, "folder": folder}
        _print_json(_facts(release) | more)
        return
    _print_release(release, manifest)
    if download is not None:
        typer.echo(f"release folder: {download}")


@app.command()
def promote(ref: Ref, registry: Uri = "", as_json: AsJson = False) -> None:
    """Make a release the champion, whatever the gate said of it."""
    opened = _open(registry)
    before, release = opened.champion(), opened.resolve(ref)
    after = opened.promote(release.version, by_hand=True)
    if as_json:
        _print_json({"champion": _facts(after), "before": before and _facts(before)})
    elif before is not None and before.version == after.version:
        typer.echo(f"release {after.release_id} is champion already: nothing moved")
    else:
        typer.echo(
            f"release {after.release_id} (version {after.version}) is champion now, by hand and "
            f"regardless of the gate, which last said: {_gate_said(release)}"
        )
        _say_withdrawn(before)


@app.command()
def rollback(registry: Uri = "", as_json: AsJson = False) -> None:
    """Make the previous release champion again."""
    opened = _open(registry)
    before = opened.champion()
    after = opened.rollback()
    if as_json:
        _print_json({"champion": _facts(after), "before": before and _facts(before)})
    else:
        typer.echo(f"release {after.release_id} (version {after.version}) is champion again")
        _say_withdrawn(before)


@app.command()
def diff(a: Ref, b: Ref, registry: Uri = "", as_json: AsJson = False) -> None:
    """Compare two releases: metrics side by side, and what they were made of.

    Each release's figures are those of its own evaluation; the gate compares on equal rows.
    """
    opened = _open(registry)
    releases = [opened.resolve(ref) for ref in (a, b)]
    left, right = (opened.manifest(release.version) for release in releases)
    made_of = {name: pair for name, pair in _ingredients(left, right) if pair[0] != pair[1]}
    figures = [
        {"predictor": p, "split": s, "metric": m, "a": x, "b": y, "better": _better(m, x, y)}
        for (p, s, m), x, y in _side_by_side(_figures(left), _figures(right))
    ]
    if as_json:
        pair = dict(zip("ab", map(_facts, releases), strict=True))
        _print_json(pair | {"metrics": figures, "made_of": made_of})
    else:
        _print_diff([release.release_id for release in releases], figures, made_of)


def _open(uri: str) -> Registry:
    from presage.models.registry import Registry
    from presage.models.registry_uri import configured_uri

    return Registry(uri or configured_uri())


def _facts(release: RegisteredRelease) -> dict[str, Any]:
    """All but the table that the gate decided by."""
    said = release.decision
    decision = said and {"outcome": said["outcome"], "reason": said["reason"]}
    return asdict(release) | {"decision": decision}


def _gate_said(release: RegisteredRelease) -> str:
    if release.decision is None:
        return "nothing, it was not asked"
    return f"{release.decision['outcome']}, {release.decision['reason']}"


def _say_withdrawn(before: RegisteredRelease | None) -> None:
    if before is not None:
        typer.echo(
            f"release {before.release_id} is withdrawn: `dvc repro` will not bring it back, "
            f"`presage models promote {before.release_id}` does"
        )


def _figures(manifest: Mapping[str, Any]) -> Figures:
    """A release's own figures, by predictor, split and metric; those of baselines are left out."""
    return {
        (predictor, split, metric): float(value)
        for predictor, splits in manifest["metrics"].items()
        for split, models in splits.items()
        for metric, value in models.get(SHIPPED, {}).items()
    }


def _side_by_side(
    left: Figures, right: Figures
) -> Iterator[tuple[tuple[str, str, str], float | None, float | None]]:
    for key in dict.fromkeys((*left, *right)):
        yield key, left.get(key), right.get(key)


def _better(metric: str, a: float | None, b: float | None) -> str:
    """Which side is better: a, b, or none."""
    if a is None or b is None or metric == "rows":
        return ""
    if metric.startswith("coverage_"):  # as near as can be to what the interval promises
        promised = float(metric.removeprefix("coverage_").rstrip("%"))
        a, b = abs(a - promised), abs(b - promised)
    elif metric.startswith("within_"):
        a, b = -a, -b
    return "" if a == b else "a" if a < b else "b"


def _ingredients(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in INGREDIENTS:
        x, y = left.get(name), right.get(name)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            for key in sorted({*x, *y}):
                yield f"{name}.{key}", (x.get(key), y.get(key))
        else:
            yield name, (x, y)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, sort_keys=True))


def _print_releases(releases: list[RegisteredRelease]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for title in ("version", "release", "aliases", "registered"):
        table.add_column(title, no_wrap=True)
    table.add_column("gate")
    for release in releases:
        outcome = (release.decision or {}).get("outcome", "not asked")
        table.add_row(
            str(release.version),
            release.release_id,
            " ".join(release.aliases),
            release.registered_at[:16].replace("T", " "),
            f"{outcome}; withdrawn by hand" if release.withdrawn_at else outcome,
        )
    Console().print(table)


def _print_release(release: RegisteredRelease, manifest: Mapping[str, Any]) -> None:
    from rich.console import Console

    versions = (f"{name} {version}" for name, version in manifest["versions"].items())
    facts = {
        "release": f"{release.release_id}, version {release.version}",
        "aliases": ", ".join(release.aliases) or "none",
        "registered": release.registered_at,
        "promoted": release.promoted_at or "never",
        "withdrawn": release.withdrawn_at or "no",
        "gate": _gate_said(release),
        "data": manifest["data_digest"],
        "trained on": ", ".join(manifest["trained_devices"]),
        "versions": ", ".join(versions),
    }
    for name, value in facts.items():
        typer.echo(f"{name:<11} {value}")
    console = Console()
    console.print(_metrics_table(_figures(manifest)))
    console.print(_devices_table(manifest))


def _metrics_table(figures: Figures) -> Any:
    """One line per predictor and metric, one column per split."""
    from rich.table import Table

    splits = list(dict.fromkeys(split for _, split, _ in figures))
    table = Table("predictor", "metric", title="metrics on what was not trained on")
    for split in splits:
        table.add_column(f"by {split}", justify="right")
    for predictor, metric in dict.fromkeys((p, m) for p, _, m in figures):
        cells = (_number(figures.get((predictor, split, metric))) for split in splits)
        table.add_row(predictor, metric, *cells)
    return table


def _devices_table(manifest: Mapping[str, Any]) -> Any:
    from rich.table import Table

    table = Table("device", "cores", "memory GiB", "fp32 GFLOP/s", "GB/s", title="devices")
    for device in manifest["devices"]:
        table.add_row(
            device["kind"],
            str(device["cores"]),
            f"{device['memory_bytes'] / 2**30:.1f}",
            f"{device['peak_flops_per_s']['fp32'] / 1e9:.0f}",
            f"{device['memory_bandwidth_bytes_per_s'] / 1e9:.0f}",
        )
    return table


def _print_diff(
    ids: list[str], figures: list[dict[str, Any]], made_of: Mapping[str, tuple[Any, Any]]
) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("predictor", "split", "metric", title="metrics; * is the better one")
    for name in ids:
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures:
        sides = (f"{_number(row[s])} {'*' if row['better'] == s else ' '}" for s in "ab")
        table.add_row(row["predictor"], row["split"], row["metric"], *sides)
    console = Console()
    console.print(table)
    for name, (x, y) in made_of.items():
        typer.echo(f"{name}: {x} | {y}")
    if not made_of:
        typer.echo("made of the same data and versions")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
