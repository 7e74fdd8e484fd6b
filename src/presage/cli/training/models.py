"""``presage models``: what is registered, which release is served, and the hand on the lever."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.training.models_tables import (
    better,
    figures,
    gate_said,
    ingredients,
    print_diff,
    print_journal,
    print_learnt,
    print_lineage,
    print_release,
    print_releases,
    side_by_side,
)
from presage.errors import ConfigError, RegistryError
from presage.system.terminal import say

if TYPE_CHECKING:
    from presage.models.registry.registered_release import RegisteredRelease
    from presage.models.registry.registry import Registry

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
RefOrFolder = Annotated[
    str, typer.Argument(metavar="REF|DIR", help="As elsewhere, or a release folder.")
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the journal keeps it.")]
Who = Annotated[
    str, typer.Option("--by", metavar="NAME", help="Who; else this user on this machine.")
]


@app.command("list")
def list_releases(registry: Uri = "", as_json: AsJson = False) -> None:
    """List releases, newest first."""
    releases = _open(registry).versions()[::-1]
    if as_json:
        _print_json([_facts(release) for release in releases])
    elif not releases:
        say("no release yet; `dvc repro` registers one")
    else:
        print_releases(releases)


@app.command()
def show(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="champion, challenger, previous; a version; a release id's start; with --lineage "
            "a release folder too.",
        ),
    ],
    lineage: Annotated[
        bool,
        typer.Option("--lineage", help="Where it came from: files, run, commit, tables, rows."),
    ] = False,
    registry: Uri = "",
    as_json: AsJson = False,
    download: Annotated[
        Path | None, typer.Option(help="Lay the release folder down here, files checked.")
    ] = None,
) -> None:
    """Show a release: its metrics, its devices, what it was made of."""
    if lineage and download is not None:
        raise RegistryError("--download lays files down, --lineage tells of them; ask twice")
    opened = _open(registry)
    if lineage:
        _show_lineage(ref, opened, as_json=as_json)
        return
    release = opened.resolve(ref)
    manifest = opened.manifest(release)
    if download is not None:
        opened.download(release.version, download)
    if as_json:
        folder = None if download is None else str(download)
        more = {"decision": release.decision, "manifest": manifest, "folder": folder}
        _print_json(_facts(release) | more)
        return
    print_release(release, manifest)
    if download is not None:
        say(f"release folder: {download}")


def _show_lineage(ref: str, registry: Registry, *, as_json: bool) -> None:
    from presage.models.registry import lineage

    facts = lineage.lineage(lineage.find_release(ref, registry))
    if as_json:
        _print_json(facts)
    else:
        print_lineage(facts)


@app.command("learnt-from")
def learnt_from(
    campaign: Annotated[
        str,
        typer.Argument(metavar="[CAMPAIGN]", help="A campaign's name, or its folder of tables."),
    ] = "",
    machine: Annotated[
        str, typer.Option(help="Of its rows those of one machine, by its name's start.")
    ] = "",
    job: Annotated[str, typer.Option(metavar="ID", help="Releases that one job taught.")] = "",
    registry: Uri = "",
    as_json: AsJson = False,
) -> None:
    """List the releases that learnt from a campaign, a machine or a job: to withdraw bad rows."""
    from presage.models.registry import lineage
    from presage.system.terminal import Console

    if not (campaign or machine or job):
        raise RegistryError("say which: a campaign, --machine NAME or --job ID")
    asked = lineage.Measurements(campaign, machine, job)
    with Console(stderr=True).status("reading manifests"):
        releases = lineage.all_releases(_open(registry))
    found = lineage.learnt_of(asked, releases)
    told = lineage.remedy(asked, found)
    if as_json:
        _print_json({"releases": [one.as_json() for one in found], "remedy": told})
    else:
        print_learnt(found, told)


@app.command()
def gate(
    ref: Annotated[
        str, typer.Argument(metavar="REF|DIR", help="As elsewhere, or a release folder.")
    ] = "data/release",
    features: Annotated[Path, typer.Option(help="Folder of featurize.")] = Path("data/features"),
    registry: Uri = "",
    as_json: AsJson = False,
) -> None:
    """Judge a release beside the champion, and change nothing; `dvc repro` judges and promotes."""
    from presage.models.gate.release_gate import GatePolicy
    from presage.models.release.release import load_release
    from presage.pipelines.stages.gate_decision import print_table
    from presage.pipelines.stages.promote import rehearse
    from presage.pipelines.stages.stage import read_params

    policy = read_params("promote", GatePolicy)
    opened = _open(registry)
    with tempfile.TemporaryDirectory() as folder:
        if _is_folder(ref):
            release = load_release(Path(ref))
        else:
            release = opened.download(opened.resolve(ref).version, Path(folder) / "release")
        decided, decision = rehearse(release, features, uri=opened.uri, policy=policy)
    if as_json:
        _print_json(decided)
        return
    if decision is not None:
        print_table(decision)
    say(f"release {release.release_id} would be {decided['outcome']}: {decided['reason']}")


@app.command()
def promote(
    ref: Ref,
    force: Annotated[
        bool, typer.Option("--force", help="Whatever the gate said; needs --reason.")
    ] = False,
    reason: Why = "",
    by: Who = "",
    registry: Uri = "",
    as_json: AsJson = False,
) -> None:
    """Make a release the champion: one that the gate let through, or any with --force."""
    from presage.models.registry.promotion_journal import BY_HAND, FORCED

    opened = _open(registry)
    follows = opened.settle()
    before, release = opened.champion(), opened.resolve(ref)
    is_champion = before is not None and before.version == release.version
    said_yes = (release.decision or {}).get("outcome") == "promoted"
    if not (said_yes or is_champion) and not (force and reason.strip()):
        raise RegistryError(
            f"the gate did not let release {release.release_id} through ({gate_said(release)}); "
            "to promote it all the same, say why: --force --reason TEXT"
        )
    verdict = BY_HAND if said_yes else FORCED
    after = opened.promote(release.version, verdict=verdict, reason=reason, by=by, follows=follows)
    if as_json:
        _print_json({"champion": _facts(after), "before": before and _facts(before)})
    elif is_champion:
        say(f"release {after.release_id} is champion already: nothing moved")
    else:
        say(
            f"release {after.release_id} (version {after.version}) is champion now, by hand"
            f"{'' if said_yes else ' and regardless of the gate'}; the gate last said: "
            f"{gate_said(release)}"
        )
        _say_withdrawn(before)


@app.command()
def rollback(reason: Why = "", by: Who = "", registry: Uri = "", as_json: AsJson = False) -> None:
    """Make the previous release champion again."""
    opened = _open(registry)
    before = opened.champion()
    after = opened.rollback(reason=reason, by=by)
    if as_json:
        _print_json({"champion": _facts(after), "before": before and _facts(before)})
    else:
        say(f"release {after.release_id} (version {after.version}) is champion again")
        _say_withdrawn(before)


@app.command()
def journal(registry: Uri = "", as_json: AsJson = False) -> None:
    """Show changes of the champion, and deletions, newest first: when, by whom, why."""
    entries = _open(registry).journal()[::-1]
    if as_json:
        _print_json([asdict(entry) for entry in entries])
    elif not entries:
        say("no entry yet: the champion was never changed")
    else:
        print_journal(entries)


@app.command()
def register(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A release folder.")],
    registry: Uri = "",
    as_json: AsJson = False,
) -> None:
    """Register a release, or put its files back where the registry's are damaged.

    `dvc repro` registers what it makes; this neither judges nor promotes.
    """
    from presage.models.release.release import load_release
    from presage.pipelines.stages.origin import origin_of

    opened, release = _open(registry), load_release(folder)
    version = opened.register(release, release.manifest["metrics"], lambda: origin_of(folder))
    if as_json:
        _print_json(_facts(opened.resolve(version)))
    else:
        say(f"release {release.release_id} is version {version}, and its files are whole")


@app.command()
def keygen(
    key: Annotated[
        Path, typer.Argument(metavar="KEY", help="Private key to write; KEY.pub is the public one.")
    ],
) -> None:
    """Make a pair of keys: one to sign releases with, one for `serve --trusted-key`."""
    from presage.models.release.signature import generate_key

    public = generate_key(key)
    say(f"private key in {key}, for you alone; public key in {public}, for servers")


@app.command()
def sign(
    ref: RefOrFolder,
    key: Annotated[Path, typer.Option(metavar="KEY", help="Private key of `models keygen`.")],
    registry: Uri = "",
) -> None:
    """Sign a release, for servers that serve signed releases only (--trusted-key)."""
    from presage.models.release.release import SIGNATURE
    from presage.models.release.signature import sign_release

    if _is_folder(ref):
        name = sign_release(Path(ref), key)
        say(f"{Path(ref) / SIGNATURE}: signed by key {name}")
        return
    opened = _open(registry)
    found = opened.resolve(ref)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "release"
        opened.download(found.version, folder)
        name = sign_release(folder, key)
        opened.attach_signature(found.version, folder / SIGNATURE)
    say(f"release {found.release_id} (version {found.version}): signed by key {name}")


@app.command()
def verify(
    ref: RefOrFolder,
    trusted_key: Annotated[
        list[Path], typer.Option(metavar="PEM", help="Public key that is trusted; repeat it.")
    ],
    registry: Uri = "",
) -> None:
    """Check that a trusted key signed a release; exit status 1 if none did."""
    from presage.models.release.release import load_release
    from presage.models.release.signature import TrustedKeys

    keys = TrustedKeys(trusted_key)
    with tempfile.TemporaryDirectory() as temporary:
        if _is_folder(ref):
            release = load_release(Path(ref))
        else:
            opened = _open(registry)
            folder = Path(temporary) / "release"
            release = opened.download(opened.resolve(ref).version, folder)
        name = keys.check(release)
    say(f"release {release.release_id}: signed by key {name}")


@app.command()
def delete(ref: Ref, registry: Uri = "", as_json: AsJson = False) -> None:
    """Delete a release, unless an alias or the journal's last ten entries refer to it."""
    opened = _open(registry)
    gone = opened.delete(opened.resolve(ref).version)
    if as_json:
        _print_json(_facts(gone))
    else:
        say(
            f"release {gone.release_id} (version {gone.version}) and its run are deleted; "
            "`mlflow gc` frees the bytes"
        )


@app.command()
def diff(a: Ref, b: Ref, registry: Uri = "", as_json: AsJson = False) -> None:
    """Compare two releases: metrics side by side, and what they were made of.

    Each release's figures are those of its own evaluation; the gate compares on equal rows.
    """
    opened = _open(registry)
    releases = [opened.resolve(ref) for ref in (a, b)]
    left, right = (opened.manifest(release) for release in releases)
    made_of = {name: pair for name, pair in ingredients(left, right) if pair[0] != pair[1]}
    rows = [
        {"predictor": p, "split": s, "metric": m, "a": x, "b": y, "better": better(m, x, y)}
        for (p, s, m), x, y in side_by_side(figures(left), figures(right))
    ]
    if as_json:
        pair = dict(zip("ab", map(_facts, releases), strict=True))
        _print_json(pair | {"metrics": rows, "made_of": made_of})
    else:
        print_diff([release.release_id for release in releases], rows, made_of)


def _is_folder(ref: str) -> bool:
    """Whether a release is named by its folder and not by its name in a registry."""
    path = Path(ref)
    if not path.is_dir() and (path.exists() or "/" in ref):
        raise ConfigError(f"{ref}: no release folder; give one, or a release of the registry")
    return path.is_dir()


def _open(uri: str) -> Registry:
    from presage.models.registry.registry import Registry
    from presage.models.registry.uri import configured_uri

    return Registry(uri or configured_uri())


def _facts(release: RegisteredRelease) -> dict[str, Any]:
    """All but the table that the gate decided by."""
    said = release.decision
    decision = said and {"outcome": said["outcome"], "reason": said["reason"]}
    return asdict(release) | {"decision": decision}


def _say_withdrawn(before: RegisteredRelease | None) -> None:
    if before is not None:
        say(
            f"release {before.release_id} is withdrawn: `dvc repro` will not bring it back, "
            f"`presage models promote {before.release_id}` does"
        )


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, sort_keys=True))
