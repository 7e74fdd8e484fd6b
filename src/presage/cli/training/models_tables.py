"""What ``presage models`` shows of releases: tables for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from presage.system.terminal import Console, Table, Tree, say, show_whole, styled

if TYPE_CHECKING:
    from presage.models.registry.lineage import Learnt
    from presage.models.registry.promotion_journal import Entry
    from presage.models.registry.registered_release import RegisteredRelease

SHIPPED = "mlp"  # in a release's metrics, beside the baselines
# What a release was made of, in the order of `diff`.
INGREDIENTS = ("data_digest", "schema_hash", "feature_set", "levels", "trained_devices", "versions")

_DIGEST = 16  # characters that are shown of a table's
_GROUPS = 8  # of a folder's campaigns and machines that have a line each

Figures = dict[tuple[str, str, str], float]


def gate_said(release: RegisteredRelease) -> str:
    """What the gate last said of a release, in a line."""
    if release.decision is None:
        return "nothing, it was not asked"
    return f"{release.decision['outcome']}, {release.decision['reason']}"


def figures(manifest: Mapping[str, Any]) -> Figures:
    """A release's own figures, by predictor, split and metric; those of baselines are left out."""
    return {
        (predictor, split, metric): float(value)
        for predictor, splits in manifest["metrics"].items()
        for split, models in splits.items()
        for metric, value in models.get(SHIPPED, {}).items()
    }


def side_by_side(
    left: Figures, right: Figures
) -> Iterator[tuple[tuple[str, str, str], float | None, float | None]]:
    """Each figure of either release, and both sides'."""
    for key in dict.fromkeys((*left, *right)):
        yield key, left.get(key), right.get(key)


def better(metric: str, a: float | None, b: float | None) -> str:
    """Which side is better: a, b, or none."""
    if a is None or b is None or metric == "rows":
        return ""
    if metric.startswith("coverage_"):  # as near as can be to what the interval promises
        promised = float(metric.removeprefix("coverage_").rstrip("%"))
        a, b = abs(a - promised), abs(b - promised)
    elif metric.startswith("within_"):
        a, b = -a, -b
    return "" if a == b else "a" if a < b else "b"


def ingredients(
    left: Mapping[str, Any], right: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What the releases were made of, each beside the other."""
    for name in INGREDIENTS:
        x, y = left.get(name), right.get(name)
        if isinstance(x, Mapping) and isinstance(y, Mapping):
            for key in sorted({*x, *y}):
                yield f"{name}.{key}", (x.get(key), y.get(key))
        else:
            yield name, (x, y)


def print_releases(releases: list[RegisteredRelease]) -> None:
    """A line for each release."""
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
    show_whole(table)


def print_release(release: RegisteredRelease, manifest: Mapping[str, Any]) -> None:
    """A release: facts, metrics, devices."""
    versions = (f"{name} {version}" for name, version in manifest["versions"].items())
    facts = {
        "release": f"{release.release_id}, version {release.version}",
        "aliases": ", ".join(release.aliases) or "none",
        "registered": release.registered_at,
        "promoted": release.promoted_at or "never",
        "withdrawn": release.withdrawn_at or "no",
        "gate": gate_said(release),
        "data": manifest["data_digest"],
        "trained on": ", ".join(manifest["trained_devices"]),
        "versions": ", ".join(versions),
    }
    for name, value in facts.items():
        say(f"{name:<11} {value}")
    console = Console()
    console.print(_metrics_table(figures(manifest)))
    console.print(_devices_table(manifest))


def _metrics_table(figures: Figures) -> Any:
    """One line per predictor and metric, one column per split."""
    splits = list(dict.fromkeys(split for _, split, _ in figures))
    table = Table("predictor", "metric", title="metrics on what was not trained on")
    for split in splits:
        table.add_column(f"by {split}", justify="right")
    for predictor, metric in dict.fromkeys((p, m) for p, _, m in figures):
        cells = (_number(figures.get((predictor, split, metric))) for split in splits)
        table.add_row(predictor, metric, *cells)
    return table


def _devices_table(manifest: Mapping[str, Any]) -> Any:
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
    """Metrics of two releases side by side, and what they were made of where that differs."""
    table = Table("predictor", "split", "metric", title="metrics; * is the better one")
    for name in ids:
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures:
        sides = (f"{_number(row[s])} {'*' if row['better'] == s else ' '}" for s in "ab")
        table.add_row(row["predictor"], row["split"], row["metric"], *sides)
    show_whole(table)
    for name, (x, y) in made_of.items():
        say(f"{name}: {x} | {y}")
    if not made_of:
        say("made of the same data and versions")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def print_lineage(facts: Mapping[str, Any]) -> None:
    """Where a release came from, as a tree: files, run, tables, rows."""
    where = f"version {facts['version']}" if facts["version"] else facts["folder"]
    title = styled(f"release {facts['release_id']} ", "bold")
    title.append_text(styled(", ".join([where, *facts["aliases"]]), "not bold"))
    tree = Tree(title)
    files = tree.add("predictors, sha256 of each ONNX file")
    for name, digest in facts["predictors"].items():
        files.add(f"{name:<20} {digest}")
    run = tree.add("registered")
    for line in _run_lines(facts["run"]):
        run.add(line)
    made_of = tree.add(f"learnt from, data digest {facts['data_digest']}")
    if facts["learnt_from"] is None:
        made_of.add("not known: it was made before releases said so")
    else:
        _add_learnt_from(made_of, facts["learnt_from"], facts["tables_here"])
    show_whole(tree)


def _run_lines(run: Mapping[str, Any] | None) -> Iterator[str]:
    if run is None:
        yield "not in this registry: run, commit and dvc.lock are not known"
        return
    yield f"{run['registered_at']} by {run['registered_by'] or 'somebody not known'}"
    yield f"MLflow run {run['run_id']}"
    if run["git_commit"]:
        changed = run["git_changed"]
        clean = f"changed since: {', '.join(changed)}" if changed else "nothing changed since"
        yield f"git commit {run['git_commit']}, {clean}"
    else:
        yield "git commit not known"
    lock = run["dvc_lock_sha256"]
    yield f"dvc.lock sha256 {lock}, kept in the run" if lock else "dvc.lock not known"


def _add_learnt_from(
    branch: Any, told: Mapping[str, Any], here: Mapping[str, Mapping[str, str]]
) -> None:
    """Folders with their tables, campaigns with their rows, then what was there before."""
    for one in told["folders"]:
        node = branch.add(f"{one['folder']}")
        for name, table in one["tables"].items():
            state = here.get(one["folder"], {}).get(name, "")
            count = f"{table['rows']:>7,} rows"
            node.add(f"{name:<12} {count}  {table['sha256'][:_DIGEST]}  {state}".rstrip())
        groups = _groups_of(one, told)
        for line in [groups] if len(groups) > _GROUPS else [[group] for group in groups]:
            node.add(_rows_line(line))
    before = told.get("began_with")
    if before is None:
        return
    node = branch.add(f"networks of release {before['release_id']}, gone on from")
    for name, digest in before["networks"].items():
        node.add(f"{name:<20} {digest}")
    if before["learnt_from"] is None:
        node.add("what had taught them is not known: that release was made before it was said")
        return
    for one in before["learnt_from"]["folders"]:
        groups = _groups_of(one, before["learnt_from"])
        node.add(f"{one['folder']}: {_rows_line(groups)}")


def _groups_of(folder: Mapping[str, Any], told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group for group in told["rows"] if group["campaign"] in folder["campaigns"]]


def _rows_line(groups: Sequence[Mapping[str, Any]]) -> str:
    """What rows of some campaigns and machines did; which of them each did, --json tells."""
    campaigns, machines = (
        sorted({group[name] for group in groups}) for name in ("campaign", "machine")
    )
    several = "s" if len(campaigns) > 1 else ""
    who = f"{len(campaigns)} campaign{several} on {len(machines)} machines"
    if len(groups) == 1:
        who = f"campaign {campaigns[0]} on machine {machines[0]}"
    alone, together, held_alone, held_together = (
        sum(group[f"{held}{table}"] for group in groups)
        for held in ("", "held_out_")
        for table in ("executions", "colocations")
    )
    return (
        f"{who}: {alone:,} alone and {together:,} together taught it, "
        f"{held_alone:,} and {held_together:,} were held out"
    )


def print_learnt(found: Sequence[Learnt], remedy: str) -> None:
    """Which releases learnt from some measurements, and what can be done about it."""
    shown = Table()
    for title in ("version", "release", "aliases", "taught by", "judged by", "through"):
        shown.add_column(title, overflow="fold")
    for one in found:
        if not one.rows and one.is_known:
            continue
        known = "" if one.is_known else ", perhaps more" if one.rows else "not known"
        taught = f"{one.taught:,}{known}" if one.rows else known
        registered = one.release.registered
        name = str(one.release.folder) if registered is None else str(registered.version)
        aliases = " ".join(one.release.aliases)
        shown.add_row(
            name, one.release.release_id, aliases, taught, f"{one.held_out:,}", one.through
        )
    console = Console(soft_wrap=True)
    console.print(shown)
    none = sum(not one.rows and one.is_known for one in found)
    local = sum(one.release.registered is None for one in found)
    where = f", of which {local} in a folder alone," if local else ""
    console.print(f"{none} of {len(found)} releases{where} learnt from none", highlight=False)
    console.print(remedy, highlight=False)


def print_journal(entries: list[Entry]) -> None:
    """Changes of the champion, in the order given."""
    shown = Table("entry", "when", "champion", "before", "verdict", "who", "why")
    for entry in entries:
        new, old = (
            _version(v, r)
            for v, r in (
                (entry.to_version, entry.to_release),
                (entry.from_version, entry.from_release),
            )
        )
        at = entry.at[:16].replace("T", " ")
        verdict = entry.verdict if entry.done else f"{entry.verdict}, under way"
        shown.add_row(str(entry.number), at, new, old, verdict, entry.by, entry.reason)
    Console().print(shown)


def _version(version: int | None, release_id: str) -> str:
    return "-" if version is None else f"{version} {release_id}".strip()
