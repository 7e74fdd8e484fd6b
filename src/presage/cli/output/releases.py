"""Releases of a registry: list, metrics, differences, promotion history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from presage.system.text.terminal import Name, Table, print_table, say

if TYPE_CHECKING:
    from presage.models.registry.promotion_journal import Entry
    from presage.models.registry.registered_release import RegisteredRelease

SHIPPED = "mlp"  # key of the release itself among the baselines in its metrics
# Fields of a manifest that say what a release was made of, in the order of `diff`.
INGREDIENTS = ("data_digest", "schema_hash", "feature_set", "levels", "trained_devices", "versions")
PLACEMENT_INGREDIENTS = ("data_digest", "schema_hash", "domain", "rule", "training", "versions")

Figures = dict[tuple[str, str, str], float]


def gate_result(release: RegisteredRelease) -> str:
    """Return the last result of the gate for a release, in one line."""
    if release.decision is None:
        return "none, the gate was not run"
    return f"{release.decision['outcome']}, {release.decision['reason']}"


def figures(manifest: Mapping[str, Any]) -> Figures:
    """Return a release's metrics by predictor, split and metric, without those of baselines."""
    return {
        (predictor, split, metric): float(value)
        for predictor, splits in manifest["metrics"].items()
        for split, models in splits.items()
        for metric, value in models.get(SHIPPED, {}).items()
    }


def placement_figures(manifest: Mapping[str, Any]) -> Figures:
    """Return the makespans of a placement release over those of each heuristic."""
    return {
        ("placement", "unseen clusters", f"makespan over {name}"): float(one["ratio"])
        for name, one in manifest["metrics"].items()
    }


def side_by_side(
    left: Figures, right: Figures
) -> Iterator[tuple[tuple[str, str, str], float | None, float | None]]:
    """Yield each metric of either release, with the values of both."""
    for key in dict.fromkeys((*left, *right)):
        yield key, left.get(key), right.get(key)


def better(metric: str, a: float | None, b: float | None) -> str:
    """Return which side is better: "a", "b", or "" for neither."""
    if a is None or b is None or metric == "rows":
        return ""
    if metric.startswith("coverage_"):  # closest to the expected coverage
        expected = float(metric.removeprefix("coverage_").rstrip("%"))
        a, b = abs(a - expected), abs(b - expected)
    elif metric.startswith("within_"):
        a, b = -a, -b
    return "" if a == b else "a" if a < b else "b"


def ingredients(
    left: Mapping[str, Any], right: Mapping[str, Any], names: Iterable[str] = INGREDIENTS
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the fields that say what each of two releases was made of."""
    for name in names:
        x, y = left.get(name), right.get(name)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            for key in sorted({*x, *y}):
                yield f"{name}.{key}", (x.get(key), y.get(key))
        else:
            yield name, (x, y)


def print_releases(releases: list[RegisteredRelease]) -> None:
    """Print a row for each release."""
    table = Table()
    for title in ("version", "release", "aliases", "registered", "gate"):
        table.add_column(title)
    for release in releases:
        outcome = (release.decision or {}).get("outcome", "not run")
        table.add_row(
            str(release.version),
            Name(release.release_id),
            " ".join(release.aliases),
            release.registered_at[:16].replace("T", " "),
            f"{outcome}; withdrawn by hand" if release.withdrawn_at else outcome,
        )
    print_table(table)


def _registry_facts(release: RegisteredRelease) -> dict[str, str]:
    return {
        "release": f"{release.release_id}, version {release.version}",
        "aliases": ", ".join(release.aliases) or "none",
        "registered": release.registered_at,
        "promoted": release.promoted_at or "never",
        "withdrawn": release.withdrawn_at or "no",
        "gate": gate_result(release),
    }


def print_release(release: RegisteredRelease, manifest: Mapping[str, Any]) -> None:
    """Print a release: facts, metrics and devices."""
    versions = (f"{name} {version}" for name, version in manifest["versions"].items())
    facts = {
        **_registry_facts(release),
        "data": manifest["data_digest"],
        "trained on": ", ".join(manifest["trained_devices"]),
        "versions": ", ".join(versions),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, value)
    print_table(table)
    print_table(_metrics_table(figures(manifest)))
    print_table(_devices_table(manifest))


def print_placement_release(release: RegisteredRelease, manifest: Mapping[str, Any]) -> None:
    """Print a placement release: facts, training settings, and makespans over heuristics."""
    domain = manifest["domain"]
    facts = {
        **_registry_facts(release),
        "git commit": release.git_commit or "unknown",
        "ONNX sha256": ", ".join(manifest["files"].values()),
        "domain": f"{domain['fewest_gpus']} to {domain['most_gpus']} GPUs, at most "
        f"{domain['most_jobs_per_gpu']:g} jobs for each GPU",
        "seed": str(manifest["training"]["seed"]),
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, value)
    print_table(table)
    ratios = Table("heuristic", "makespan over its own", "low", "high", title="on unseen clusters")
    for name, one in manifest["metrics"].items():
        ratios.add_row(name, *(f"{one[key]:.4f}" for key in ("ratio", "low", "high")))
    print_table(ratios)


def print_makespans(
    figures: Mapping[str, Mapping[str, float]], verdicts: Mapping[str, str]
) -> None:
    """Print the makespans of a placement release over those of others, with the verdicts."""
    if not figures:
        return
    table = Table("compared with", "makespan over its own", "low", "high", "verdict")
    for name, one in figures.items():
        cells = (f"{one[key]:.4f}" for key in ("ratio", "low", "high"))
        table.add_row(name, *cells, verdicts[name].removesuffix(" with").removesuffix(" than"))
    print_table(table)


def _metrics_table(figures: Figures) -> Table:
    """Return a table with a row per predictor and metric, and a column per split."""
    splits = list(dict.fromkeys(split for _, split, _ in figures))
    table = Table("predictor", "metric", title="metrics on held-out jobs")
    for split in splits:
        table.add_column(f"by {split}", justify="right")
    for predictor, metric in dict.fromkeys((p, m) for p, _, m in figures):
        cells = (_number(figures.get((predictor, split, metric))) for split in splits)
        table.add_row(predictor, metric, *cells)
    return table


def _devices_table(manifest: Mapping[str, Any]) -> Table:
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


def print_diff(
    ids: list[str], figures: list[dict[str, Any]], made_of: Mapping[str, tuple[Any, Any]]
) -> None:
    """Print the metrics of two releases, and the training data and versions that differ."""
    table = Table("predictor", "split", "metric", title="metrics; * marks the better release")
    for name in ids:
        table.add_column(name, justify="right")
    for row in figures:
        sides = (f"{_number(row[s])} {'*' if row['better'] == s else ' '}" for s in "ab")
        table.add_row(row["predictor"], row["split"], row["metric"], *sides)
    print_table(table)
    for name, (x, y) in made_of.items():
        say(f"{name}: {x} | {y}")
    if not made_of:
        say("made of the same data and versions")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def print_history(entries: list[Entry]) -> None:
    """Print changes of the champion, in the order given."""
    shown = Table("entry", "time", "champion", "before", "verdict", "by", "reason")
    for entry in entries:
        new, old = (
            _version(v, r)
            for v, r in (
                (entry.to_version, entry.to_release),
                (entry.from_version, entry.from_release),
            )
        )
        at = entry.at[:16].replace("T", " ")
        verdict = entry.verdict if entry.done else f"{entry.verdict}, in progress"
        shown.add_row(
            str(entry.number), at, Name(new), Name(old), verdict, Name(entry.by), entry.reason
        )
    print_table(shown)


def _version(version: int | None, release_id: str) -> str:
    return "-" if version is None else f"{version} {release_id}".strip()
