"""DVC stage that registers a release, compares it with the champion, and promotes a better one.

The registry is outside of DVC, so this stage runs on every `dvc repro`, and a second run must not
change anything. It asks the registry for the champion without importing anything heavy
(:func:`presage.models.registry.champion.find_champion_id`). A local pointer file would be faster,
but wrong after a rollback from another machine.
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
# Modules below presage.models with the rules of a decision: a change of them invalidates it.
RULE_MODULES = (
    "gate/release_gate",
    "gate/paired_bootstrap",
    "gate/holdout_score",
    "gate/holdout_forecasts",
    "calibration/error_metrics",
)


@dataclass(frozen=True)
class GateResult:
    """Decision of the gate, with the scored releases; ``champion`` is None if not comparable."""

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
    """Register a release, let the gate decide, and promote it; return a summary.

    Parameters
    ----------
    release : Release
    features : Path
        Folder of featurize.
    target : Path
        File for the decision.
    uri : str
        Registry.
    policy : GatePolicy
    evaluation : Path, optional
        Folder of evaluate, whose plots are stored with the release.

    Raises
    ------
    RegistryError
        The registry cannot be reached, or its champion changed during the evaluation.
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
            # Raises if the champion has changed, because the gate compared with the old one.
            registry.promote(challenger.version, reason=decided["reason"], follows=follows)
    _write(decided, target)
    if is_champion:
        return _already_champion(release)
    return _summarize(release, decided)


def _register(registry: Registry, release: Release, evaluation: Path | None) -> RegisteredRelease:
    """Register the release, a new one with its provenance and plots; return its version."""
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
    """Write to ``target`` what :func:`promote` would decide about an experiment's release.

    An experiment is compared with the champion, but neither registered nor promoted. Without a
    registry there is no champion.
    """
    database = database_path(uri)
    if database is not None and not database.exists():
        decided = make_document(
            release.release_id,
            None,
            _judge_without_champion(release, features, policy).decision,
            input_digest="",
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
    """Return what :func:`promote` would decide, without any change.

    The decision with its table is None if the release is already the champion.
    """
    from presage.models.registry.registry import Registry

    registry = Registry(uri)
    champion = registry.champion()
    known = next((r for r in registry.versions() if r.release_id == release.release_id), None)
    if champion is not None and champion == known:
        return _mark_champion(_last_decision(champion)) | {
            "reason": _already_champion(release)
        }, None
    result = judge(release, champion, registry, features, policy)
    before = None if champion is None else champion.release_id
    decided = make_document(release.release_id, before, result.decision, input_digest="")
    if known is not None and known.withdrawn_at:
        decided |= _reject_withdrawn(known)
    return decided, result.decision


def judge(
    release: Release,
    champion: RegisteredRelease | None,
    registry: Registry,
    features: Path,
    policy: GatePolicy,
) -> GateResult:
    """Score both releases on the same held-out rows, and decide.

    A champion is not comparable if it has another feature schema, violates the ONNX contract, or
    was trained on held-out jobs. Then only the bounds decide, and the reason says so.

    Raises
    ------
    RegistryError
        The champion's files are corrupt in the registry, so nothing is decided.
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
            if overlap := gate.judged_jobs_in_training(theirs):
                raise ReleaseError(
                    f"it was trained on {len(overlap)} of the held-out jobs: {overlap[0]}"
                )
        except ReleaseError as error:
            decision = gate.decide(None, ours, policy)
            cause = str(error).replace(f"{folder}/", "")
            reason = f"{decision.reason}; champion {champion.release_id} cannot be scored: {cause}"
            return GateResult(replace(decision, reason=reason), ours, None)
    return GateResult(gate.decide(theirs, ours, policy), ours, theirs)


def _fetch_champion(champion: RegisteredRelease, registry: Registry, target: Path) -> Release:
    """Download the champion's files; retry once, in case they were corrupted in transit."""
    with contextlib.suppress(ReleaseError):
        return registry.download(champion.version, target)
    try:
        return registry.download(champion.version, target)
    except ForeignReleaseError:
        raise
    except ReleaseError as error:
        raise RegistryError(
            f"no release is promoted while the champion's files are corrupt: {error}"
        ) from error


def _judge_without_champion(release: Release, features: Path, policy: GatePolicy) -> GateResult:
    """Decide only by the bounds, without a champion."""
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
    """Return the gate's decision, from the registry if its inputs have not changed."""
    digest = _input_digest(release, champion, features, policy)
    if challenger.decision is not None and challenger.decision["asked"] == digest:
        return dict(challenger.decision)
    from presage.models.gate.release_events import notify_of_refusal
    from presage.system.notifications.webhook import configured_webhook
    from presage.system.text.terminal import Console

    webhook = configured_webhook()
    registry.set_challenger(challenger.version)
    with Console(stderr=True).status("scoring champion and challenger on the held-out jobs"):
        result = judge(release, champion, registry, features, policy)
    print_table(result.decision)
    before = None if champion is None else champion.release_id
    decided = make_document(release.release_id, before, result.decision, digest)
    figures = {
        name: {} if scored is None else scored.figures()
        for name, scored in (("challenger", result.challenger), ("champion", result.champion))
    }
    registry.log_decision(challenger.version, decided, figures, decision_rows(result.decision))
    if decided["outcome"] == NOT_PROMOTED:
        notify_of_refusal(webhook, release.release_id, before, decided["reason"])
    return decided


def _already_champion(release: Release) -> str:
    return f"release {release.release_id} is already the champion: nothing to do"


def _input_digest(
    release: Release, champion: RegisteredRelease | None, features: Path, policy: GatePolicy
) -> str:
    """Return the digest of everything that a decision depends on, with the code of the rules."""
    import presage.models

    models = Path(presage.models.__path__[0])
    files = [features / name for name in TABLES]
    files += [models / f"{name}.py" for name in RULE_MODULES]
    inputs = {
        "challenger": release.release_id,
        "champion": champion and champion.release_id,
        "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
        "policy": asdict(policy),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def _last_decision(champion: RegisteredRelease) -> Document:
    """Return the last decision of the gate on the champion, or a placeholder without one."""
    if champion.decision is not None:
        return dict(champion.decision)
    return {
        "challenger": champion.release_id,
        "champion": None,
        "asked": "",
        "outcome": PROMOTED,
        "reason": "promoted by a person, without a decision of the gate",
        "figures": {},
        "verdicts": {},
        "rows": [],
    }


def _mark_champion(decided: Document) -> Document:
    """Return the decision on a release that is the champion, also if a person promoted it."""
    if decided["outcome"] == PROMOTED:
        return decided
    reason = f"promoted by a person; the gate had decided: {decided['reason']}"
    return decided | {"outcome": PROMOTED, "reason": reason}


def _decide_withdrawn(challenger: RegisteredRelease) -> Document:
    return _last_decision(challenger) | _reject_withdrawn(challenger)


def _reject_withdrawn(challenger: RegisteredRelease) -> Document:
    reason = (
        "withdrawn by a person; to promote it again, run "
        f"`presage models promote {challenger.release_id}`"
    )
    return {"outcome": NOT_PROMOTED, "reason": reason}


def _summarize(release: Release, decided: Document) -> str:
    return f"release {release.release_id} {decided['outcome']}: {decided['reason']}"


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: release -> registry, perhaps champion")
    parser.add_argument("release", type=Path, help="release folder")
    parser.add_argument("features", type=Path, help="folder of featurize")
    parser.add_argument("decision", type=Path, help="JSON file to write the decision to")
    parser.add_argument("--evaluation", type=Path, help="folder of evaluate, to store its plots")
    parser.add_argument("--verdict", type=Path, help="JSON file for the values that DVC shows")
    parser.add_argument("--dry-run", action="store_true", help="print the decision only")
    args = parser.parse_args(argv)
    policy = read_params("promote", GatePolicy)
    uri, release = configured_uri(), load_release(args.release)
    if args.dry_run:
        decided, decision = preview_promotion(release, args.features, uri=uri, policy=policy)
        if decision is not None:
            print_table(decision)
        summary = printable(_summarize(release, decided), None)
        print(f"dry run, nothing was changed: {summary}")  # noqa: T201
        return
    summary = _run(
        release, args.features, args.decision, uri=uri, policy=policy, evaluation=args.evaluation
    )
    print(printable(summary, None))  # noqa: T201
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
    """Promote or try a release; skip the gate if it is already the champion."""
    if name := experiment():
        release = replace(release, folder=release.folder.resolve())
        features, target = features.resolve(), target.resolve()
        with contextlib.chdir(workspace()):  # a relative path to the registry starts there
            return judge_experiment(release, features, target, name=name, uri=uri, policy=policy)
    known = read_decision(target, release.release_id)
    if find_champion_id(uri) == release.release_id and known and known["outcome"] == PROMOTED:
        return _already_champion(release)
    return promote(release, features, target, uri=uri, policy=policy, evaluation=evaluation)


if __name__ == "__main__":
    run_stage(main)
