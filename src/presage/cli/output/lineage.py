"""Provenance of releases: files, run, tables and rows, and releases trained on given rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from presage.system.text.terminal import Name, Table, Tree, print_table, say, show_whole, styled

if TYPE_CHECKING:
    from presage.models.registry.lineage import TrainingUsage

_DIGEST = 16  # characters of a table's digest that are shown
_GROUPS = 8  # campaigns and machines of a folder that have a line each


def print_lineage(facts: Mapping[str, Any]) -> None:
    """Print the provenance of a release as a tree: files, run, tables and rows."""
    where = f"version {facts['version']}" if facts["version"] else facts["folder"]
    title = styled(f"release {facts['release_id']} ", "bold")
    title.append_text(styled(", ".join([where, *facts["aliases"]]), "not bold"))
    tree = Tree(title)
    files = tree.add("sha256 of each ONNX file")
    for name, digest in facts["predictors"].items():
        files.add(f"{name:<20} {digest}")
    run = tree.add("registered")
    for line in _run_lines(facts["run"]):
        run.add(line)
    made_of = tree.add(f"training data digest {facts['data_digest']}")
    if facts["learnt_from"] is None:
        made_of.add("unknown: the release does not record it")
    else:
        _add_learnt_from(made_of, facts["learnt_from"], facts["tables_here"])
    show_whole(tree)


def _run_lines(run: Mapping[str, Any] | None) -> Iterator[str]:
    if run is None:
        yield "not in this registry: run, commit and dvc.lock are unknown"
        return
    yield f"{run['registered_at']} by {run['registered_by'] or 'unknown'}"
    yield f"MLflow run {run['run_id']}"
    if run["git_commit"]:
        changed = run["git_changed"]
        clean = f"modified: {', '.join(changed)}" if changed else "no modified files"
        yield f"git commit {run['git_commit']}, {clean}"
    else:
        yield "git commit unknown"
    lock = run["dvc_lock_sha256"]
    yield f"dvc.lock sha256 {lock}, stored in the run" if lock else "dvc.lock unknown"


def _add_learnt_from(
    branch: Any, recorded: Mapping[str, Any], here: Mapping[str, Mapping[str, str]]
) -> None:
    """Add folders with their tables, campaigns with their rows, then the pretrained networks."""
    for one in recorded["folders"]:
        node = branch.add(f"{one['folder']}")
        for name, table in one["tables"].items():
            state = here.get(one["folder"], {}).get(name, "")
            count = f"{table['rows']:>7,} rows"
            node.add(f"{name:<12} {count}  {table['sha256'][:_DIGEST]}  {state}".rstrip())
        groups = _groups_of(one, recorded)
        for line in [groups] if len(groups) > _GROUPS else [[group] for group in groups]:
            node.add(_rows_line(line))
    before = recorded.get("began_with")
    if before is None:
        return
    node = branch.add(f"fine-tuned from the networks of release {before['release_id']}")
    for name, digest in before["networks"].items():
        node.add(f"{name:<20} {digest}")
    if before["learnt_from"] is None:
        node.add("their training data is unknown: the release does not record it")
        return
    for one in before["learnt_from"]["folders"]:
        groups = _groups_of(one, before["learnt_from"])
        node.add(f"{one['folder']}: {_rows_line(groups)}")


def _groups_of(folder: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [group for group in recorded["rows"] if group["campaign"] in folder["campaigns"]]


def _rows_line(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return how many rows of campaigns and machines were trained on, and how many held out."""
    campaigns, machines = (
        sorted({group[name] for group in groups}) for name in ("campaign", "machine")
    )
    several = "s" if len(campaigns) > 1 else ""
    source = f"{len(campaigns)} campaign{several} on {len(machines)} machines"
    if len(groups) == 1:
        source = f"campaign {campaigns[0]} on machine {machines[0]}"
    solo, colocated, held_solo, held_colocated = (
        sum(group[f"{held}{table}"] for group in groups)
        for held in ("", "held_out_")
        for table in ("executions", "colocations")
    )
    return (
        f"{source}: trained on {solo:,} solo and {colocated:,} co-located rows, "
        f"{held_solo:,} and {held_colocated:,} held out"
    )


def print_learnt(found: Sequence[TrainingUsage], remedy: str) -> None:
    """Print the releases trained on given rows, and how to remove those rows."""
    shown = Table()
    for title in ("version", "release", "aliases", "trained on", "held out", "through"):
        shown.add_column(title, overflow="fold")
    for one in found:
        if not one.rows and one.is_known:
            continue
        known = "" if one.is_known else ", perhaps more" if one.rows else "unknown"
        taught = f"{one.trained:,}{known}" if one.rows else known
        registered = one.release.registered
        name = str(one.release.folder) if registered is None else str(registered.version)
        aliases = " ".join(one.release.aliases)
        shown.add_row(
            Name(name), Name(one.release.release_id), aliases, taught, f"{one.held_out:,}",
            Name(one.through),
        )  # fmt: skip
    print_table(shown)
    none = sum(not one.rows and one.is_known for one in found)
    local = sum(one.release.registered is None for one in found)
    where = f", {local} of them unregistered," if local else ""
    say(f"{none} of {len(found)} releases{where} were not trained on these rows")
    say(remedy)
