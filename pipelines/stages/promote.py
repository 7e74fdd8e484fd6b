"""DVC stage: a release is registered, judged beside the champion, and promoted if it is better.

The registry lies outside of DVC, so this stage runs on every `dvc repro`, and a second run must
change nothing. The registry is asked who is champion, by the short way of
:func:`presage.models.registry.champion.find_champion_id`: a pointer file of our own would be quicker
still but would be wrong after a rollback from another machine. Nothing heavy is imported before
that.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from presage.errors import ForeignReleaseError, RegistryError, ReleaseError
from presage.models.gate import release_gate as gate
from presage.models.gate.release_gate import Decision, GatePolicy
from presage.models.registry.champion import find_champion_id
from presage.models.registry.uri import configured_uri, database_path
from presage.models.release.release import Release, load_release
from presage.pipelines.experiment import experiment, workspace
from presage.pipelines.stages.gate_decision import (
    NOT_PROMOTED,
    PROMOTED,
    Document,
    decision_rows,
    make_document,
    mark_experiment,
    print_table,
    read_decision,
    summarize_verdict,
)
from presage.pipelines.stages.stage import read_params, read_table, run_stage
from presage.system.files.atomic_file import write_atomically
from presage.system.text.printable import printable

if TYPE_CHECKING:
    from presage.models.gate.holdout_forecasts import ScoredRelease
    from presage.models.registry.mlflow_run import Origin
    from presage.models.registry.registered_release import RegisteredRelease
    from presage.models.registry.registry import Registry

TABLES = ("solo.parquet", "interference.parquet")
# What a decision rests on beside files, policy and releases.
RULE_MODULES = ("gate", "paired", "score", "scored", "metrics")


@dataclass(frozen=True)
class GateResult:
    """What the gate decided, and those it judged; a champion that is no measure is None."""

    decision: Decision
    challenger: ScoredRelease
    champion: ScoredRelease | None


def promote(
    release: Release,
    features: Path,
    target: Path,
    *,
    uri: str,
    policy: GatePolicy,
    evaluation: Path | None = None,
) -> str:
    """Register a release and let the gate decide; ``target`` then says what, and so does this.

    ``evaluation`` is the folder whose plots are kept with it.

    Raises
    ------
    RegistryError
        The registry cannot be reached; or its champion changed while the gate was judging.
    """
    from presage.models.registry.registry import Registry

    registry = Registry(uri)
    challenger = _register(registry, release, evaluation)
    follows = registry.reconcile()
    champion = registry.champion()
    is_champion = champion is not None and champion.version == challenger.version
    if is_champion:
        decided = _mark_champion(
            read_decision(target, release.release_id) or _last_decision(challenger)
        )
    elif challenger.withdrawn_at:
        decided = _decide_withdrawn(challenger)
    else:
        decided = _decide(registry, release, challenger, champion, features, policy)
        if decided["outcome"] == PROMOTED:
            # Refused if the champion is another by now: the gate did not judge against that one.
            registry.promote(challenger.version, reason=decided["reason"], follows=follows)
    _write(decided, target)
    if is_champion:
        return _already_champion(release)
    return _summarize(release, decided)


def _register(registry: Registry, release: Release, evaluation: Path | None) -> RegisteredRelease:
    """The release's version; a new one comes with where it is from and what it was made with."""
    from presage.pipelines.evaluation.plots import pictures
    from presage.pipelines.stages.origin import read_origin

    with ExitStack() as stack:

        def origin() -> Origin:
            plots = pictures(evaluation / "plots") if evaluation else nullcontext()
            return read_origin(release.folder, stack.enter_context(plots))

        return registry.resolve(registry.register(release, release.manifest["metrics"], origin))


def judge_experiment(
    release: Release, features: Path, target: Path, *, name: str, uri: str, policy: GatePolicy
) -> str:
    """Let ``target`` say what :func:`promote` would decide of an experiment's release.

    An experiment is one of many: it is judged beside the champion, and neither registered nor
    promoted. Without a registry there is no champion.
    """
    database = database_path(uri)
    if database is not None and not database.exists():
        decided = make_document(
            release.release_id,
            None,
            _judge_without_champion(release, features, policy).decision,
            asked="",
        )
        tried = mark_experiment(decided, name)
    else:
        decided, decision = preview_promotion(release, features, uri=uri, policy=policy)
        tried = decided if decision is None else mark_experiment(decided, name)
    _write(tried | {"experiment": name}, target)
    return f"experiment {name}: {_summarize(release, tried)}"


def _write(decided: Document, target: Path) -> None:
    text = json.dumps(decided, indent=2, sort_keys=True) + "\n"
    write_atomically(target, lambda path: path.write_text(text))


def preview_promotion(
    release: Release, features: Path, *, uri: str, policy: GatePolicy
) -> tuple[Document, Decision | None]:
    """What :func:`promote` would decide, and its table; nothing is registered, moved or written.

    Without a table where the release is champion already.
    """
    from presage.models.registry.registry import Registry

    registry = Registry(uri)
    champion = registry.champion()
    known = next((r for r in registry.versions() if r.release_id == release.release_id), None)
    if champion is not None and champion == known:
        return _mark_champion(_last_decision(champion)) | {
            "reason": _already_champion(release)
        }, None
    judgement = judge(release, champion, registry, features, policy)
    before = None if champion is None else champion.release_id
    decided = make_document(release.release_id, before, judgement.decision, asked="")
    if known is not None and known.withdrawn_at:
        decided |= _reject_withdrawn(known)
    return decided, judgement.decision


def judge(
    release: Release,
    champion: RegisteredRelease | None,
    registry: Registry,
    features: Path,
    policy: GatePolicy,
) -> GateResult:
    """Score both on the same held-out rows, and decide.

    A champion that cannot be scored, because it was made for another feature schema or its networks
    break the contract, is no measure, nor is one that was trained on these rows: bounds alone
    decide then, and the reason says so.

    Raises
    ------
    RegistryError
        The champion's files arrive damaged: it would be a measure, so nothing is decided.
    """
    from presage.models.gate.holdout_score import score_release

    if champion is None:
        return _judge_without_champion(release, features, policy)
    solo, interference = (read_table(features / name) for name in TABLES)
    ours = score_release(release, solo, interference)
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded = _fetch_champion(champion, registry, Path(folder) / "champion")
            theirs = score_release(loaded, solo, interference)
            if seen := gate.judged_jobs_in_training(theirs):
                raise ReleaseError(f"it was trained on {len(seen)} of the held-out jobs: {seen[0]}")
        except ReleaseError as error:
            decision = gate.decide(None, ours, policy)
            why = str(error).replace(f"{folder}/", "")
            reason = f"{decision.reason}; champion {champion.release_id} cannot be scored: {why}"
            return GateResult(replace(decision, reason=reason), ours, None)
    return GateResult(gate.decide(theirs, ours, policy), ours, theirs)


def _fetch_champion(champion: RegisteredRelease, registry: Registry, to: Path) -> Release:
    """The champion's files; fetched once more, where they were damaged perhaps on their way."""
    with contextlib.suppress(ReleaseError):
        return registry.download(champion.version, to)
    try:
        return registry.download(champion.version, to)
    except ForeignReleaseError:
        raise
    except ReleaseError as error:
        raise RegistryError(
            f"no release is promoted while the champion is no measure: {error}"
        ) from error


def _judge_without_champion(release: Release, features: Path, policy: GatePolicy) -> GateResult:
    """By the bounds, where there is no champion."""
    from presage.models.gate.holdout_score import score_release

    ours = score_release(release, *(read_table(features / name) for name in TABLES))
    return GateResult(gate.decide(None, ours, policy), ours, None)


def _decide(
    registry: Registry,
    release: Release,
    challenger: RegisteredRelease,
    champion: RegisteredRelease | None,
    features: Path,
    policy: GatePolicy,
) -> Document:
    """The gate's word, from the registry where the same question was asked before."""
    asked = _input_digest(release, champion, features, policy)
    if challenger.decision is not None and challenger.decision["asked"] == asked:
        return dict(challenger.decision)
    from presage.system.text.terminal import Console

    registry.set_challenger(challenger.version)
    with Console(stderr=True).status("scoring champion and challenger on the held-out jobs"):
        judgement = judge(release, champion, registry, features, policy)
    print_table(judgement.decision)
    before = None if champion is None else champion.release_id
    decided = make_document(release.release_id, before, judgement.decision, asked)
    figures = {
        who: {} if scored is None else scored.figures()
        for who, scored in (("challenger", judgement.challenger), ("champion", judgement.champion))
    }
    registry.log_decision(challenger.version, decided, figures, decision_rows(judgement.decision))
    return decided


def _already_champion(release: Release) -> str:
    return f"release {release.release_id} is champion already: nothing to do"


def _input_digest(
    release: Release, champion: RegisteredRelease | None, features: Path, policy: GatePolicy
) -> str:
    """Digest of all that a decision rests on, the gate's own rules among it."""
    from importlib.util import find_spec

    rules = [find_spec(f"presage.models.{name}") for name in RULE_MODULES]
    files = [features / name for name in TABLES]
    files += [Path(spec.origin) for spec in rules if spec is not None and spec.origin]
    question = {
        "challenger": release.release_id,
        "champion": champion and champion.release_id,
        "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
        "policy": asdict(policy),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]


def _last_decision(champion: RegisteredRelease) -> Document:
    """What the gate said of the champion, if it was ever asked."""
    if champion.decision is not None:
        return dict(champion.decision)
    return {
        "challenger": champion.release_id,
        "champion": None,
        "asked": "",
        "outcome": PROMOTED,
        "reason": "a person made it champion; the gate was not asked",
        "figures": {},
        "verdicts": {},
        "rows": [],
    }


def _mark_champion(decided: Document) -> Document:
    """The gate's word of a release that is champion, whoever made it so."""
    if decided["outcome"] == PROMOTED:
        return decided
    reason = f"a person made it champion; the gate had said: {decided['reason']}"
    return decided | {"outcome": PROMOTED, "reason": reason}


def _decide_withdrawn(challenger: RegisteredRelease) -> Document:
    return _last_decision(challenger) | _reject_withdrawn(challenger)


def _reject_withdrawn(challenger: RegisteredRelease) -> Document:
    reason = (
        "a person put another release in its place; to have it back: "
        f"presage models promote {challenger.release_id}"
    )
    return {"outcome": NOT_PROMOTED, "reason": reason}


def _summarize(release: Release, decided: Document) -> str:
    return f"release {release.release_id} {decided['outcome']}: {decided['reason']}"


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: release -> registry, perhaps champion")
    parser.add_argument("release", type=Path, help="release folder")
    parser.add_argument("features", type=Path, help="folder of featurize")
    parser.add_argument("decision", type=Path, help="JSON file to write the decision to")
    parser.add_argument("--evaluation", type=Path, help="folder of evaluate, to keep its plots")
    parser.add_argument("--verdict", type=Path, help="JSON file for the few values that DVC shows")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, do nothing")
    args = parser.parse_args(argv)
    policy = read_params("promote", GatePolicy)
    uri, release = configured_uri(), load_release(args.release)
    if args.dry_run:
        decided, decision = preview_promotion(release, args.features, uri=uri, policy=policy)
        if decision is not None:
            print_table(decision)
        told = printable(_summarize(release, decided), None)
        print(f"dry run, nothing was changed: {told}")  # noqa: T201
        return
    said = _run(
        release, args.features, args.decision, uri=uri, policy=policy, evaluation=args.evaluation
    )
    print(printable(said, None))  # noqa: T201
    if args.verdict is not None:
        _write(summarize_verdict(json.loads(args.decision.read_text())), args.verdict)


def _run(
    release: Release,
    features: Path,
    target: Path,
    *,
    uri: str,
    policy: GatePolicy,
    evaluation: Path | None,
) -> str:
    """By the shortest way that does."""
    if name := experiment():
        release = replace(release, folder=release.folder.resolve())
        features, target = features.resolve(), target.resolve()
        with contextlib.chdir(workspace()):  # a relative path to the registry is meant from there
            return judge_experiment(release, features, target, name=name, uri=uri, policy=policy)
    known = read_decision(target, release.release_id)
    if find_champion_id(uri) == release.release_id and known and known["outcome"] == PROMOTED:
        return _already_champion(release)
    return promote(release, features, target, uri=uri, policy=policy, evaluation=evaluation)


if __name__ == "__main__":
    run_stage(main)
