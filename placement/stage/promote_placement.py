"""DVC stage that registers a placement release, and promotes it if the gate accepts it.

The registry is outside of DVC, so this stage runs on every `dvc repro`; a second run changes
nothing, and does not import MLflow.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from presage.models.registry.mlflow_store import READ_ERRORS, read_alias
from presage.models.registry.uri import CHAMPION as CHAMPION_ALIAS
from presage.models.registry.uri import configured_uri, database_path
from presage.pipelines.experiment import experiment, workspace
from presage.pipelines.stages.stage import read_params, run_stage
from presage.placement.core.batches import CHECKPOINTS
from presage.placement.stage.paired_evaluation import (
    PairedRatio,
    paired_ratio,
    scorer_makespans,
    worlds_of,
)
from presage.placement.stage.placement_gate import (
    CHAMPION,
    NOT_PROMOTED,
    PROMOTED,
    WOULD_BE_PROMOTED,
    Document,
    PlacementGatePolicy,
    decide,
)
from presage.placement.stage.release_kind import PLACEMENT
from presage.placement.stage.train_placement import EVALUATION_SEED, PlacementSettings, rule_of
from presage.schedulers.policies.failures.learnt.placement_release import (
    PlacementRelease,
    load_placement_release,
    placement_schema_hash,
)
from presage.system.files.atomic_file import write_atomically

if TYPE_CHECKING:
    from presage.models.registry.registered_release import RegisteredRelease
    from presage.models.registry.registry import Registry


def promote_placement(
    release: PlacementRelease, target: Path, *, uri: str, policy: PlacementGatePolicy
) -> Document:
    """Register a release, let the gate decide, and promote it; write and return the decision.

    Raises
    ------
    RegistryError
        The registry cannot be reached, or its champion changed meanwhile.
    """
    from presage.models.gate.release_events import notify_of_refusal
    from presage.models.registry.registry import Registry
    from presage.pipelines.stages.origin import read_origin
    from presage.system.notifications.webhook import configured_webhook

    webhook, registry = configured_webhook(), Registry(uri, PLACEMENT)
    number = registry.register(
        release, release.manifest["metrics"], lambda: read_origin(release.folder)
    )
    challenger, follows = registry.resolve(number), registry.reconcile()
    champion = registry.champion()
    if champion is not None and champion.version == challenger.version:
        decided = dict(challenger.decision or {}) or _by_hand(release)
        decided["outcome"] = PROMOTED
    else:
        decided = _judged(registry, release, champion, policy)
        if challenger.withdrawn_at:
            decided |= _withdrawn(release)
        registry.log_decision(number, decided, decided["figures"])
        if decided["outcome"] == PROMOTED:
            registry.promote(number, reason=decided["reason"], follows=follows)
        elif decided["outcome"] != (challenger.decision or {}).get("outcome"):
            before = None if champion is None else champion.release_id
            notify_of_refusal(
                webhook, release.release_id, before, decided["reason"], PLACEMENT.model
            )
    _write(decided, target)
    return decided


def preview_placement(
    release: PlacementRelease, *, uri: str, policy: PlacementGatePolicy
) -> Document:
    """Return what :func:`promote_placement` would decide, without any change."""
    from presage.models.registry.registry import Registry

    registry = Registry(uri, PLACEMENT)
    releases = registry.versions() if _exists(uri) else []
    known = next((one for one in releases if one.release_id == release.release_id), None)
    champion = registry.champion() if releases else None
    if champion is not None and champion == known:
        decided = dict(champion.decision or {}) or _by_hand(release)
        return decided | {
            "outcome": PROMOTED,
            "reason": f"release {release.release_id} is the champion already",
        }
    decided = _judged(registry, release, champion, policy)
    if known is not None and known.withdrawn_at:
        decided |= _withdrawn(release)
    return decided


def judge_experiment(
    release: PlacementRelease, target: Path, *, uri: str, policy: PlacementGatePolicy
) -> Document:
    """Write what the gate would decide about an experiment's release; nothing is registered."""
    from presage.models.registry.registry import Registry

    registry = Registry(uri, PLACEMENT)
    champion = registry.champion() if _exists(uri) else None
    decided = _judged(registry, release, champion, policy) | {"experiment": experiment()}
    if decided["outcome"] == PROMOTED:
        decided["outcome"] = WOULD_BE_PROMOTED
    _write(decided, target)
    return decided


def _judged(
    registry: Registry,
    release: PlacementRelease,
    champion: RegisteredRelease | None,
    policy: PlacementGatePolicy,
) -> Document:
    rivals = {}
    if champion is not None:
        with tempfile.TemporaryDirectory() as folder:
            registry.download(champion.version, Path(folder) / "champion")
            rival = load_placement_release(Path(folder) / "champion")
            if rival.schema_hash == placement_schema_hash():
                rivals[CHAMPION] = _rival_makespans(rival, release)
    ratios = makespan_ratios(release, policy, rivals)
    rival_id = None if champion is None else champion.release_id
    return decide(release.release_id, rival_id, ratios, _digest(release, rival_id, policy))


def makespan_ratios(
    release: PlacementRelease,
    policy: PlacementGatePolicy,
    rivals: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, PairedRatio]:
    """Return a release's makespan over that of each heuristic, and of rivals, on its batches.

    Parameters
    ----------
    rivals : mapping of str to ndarray of shape (batches,)
        Makespans of other releases on the same batches.
    """
    makespans = {name: np.array(values) for name, values in release.manifest["makespans_s"].items()}
    learnt_s = makespans.pop("learnt")
    return {
        name: paired_ratio(
            learnt_s, other_s, confidence=policy.confidence, resamples=policy.resamples,
            seed=policy.seed,
        )
        for name, other_s in (makespans | dict(rivals)).items()
    }  # fmt: skip


def _rival_makespans(rival: PlacementRelease, release: PlacementRelease) -> np.ndarray:
    """Return the makespans of the champion, with its own rule, on the challenger's batches."""
    settings = _settings(release)
    worlds = worlds_of(CHECKPOINTS, settings.gpus, settings.jobs_per_gpu)
    return scorer_makespans(
        worlds, rule_of(_settings(rival)), rival.model, settings.evaluated, seed=EVALUATION_SEED
    )


def _settings(release: PlacementRelease) -> PlacementSettings:
    """Return the settings with which a release was trained."""
    training = {k: v for k, v in release.manifest["training"].items() if k != "world"}
    sizes = {name: tuple(training[name]) for name in ("gpus", "trained_gpus")}
    return PlacementSettings(**training | sizes)


def _digest(release: PlacementRelease, champion: str | None, policy: PlacementGatePolicy) -> str:
    inputs = [release.release_id, champion, asdict(policy)]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:12]


def _by_hand(release: PlacementRelease) -> Document:
    return {
        "challenger": release.release_id,
        "champion": None,
        "asked": "",
        "reason": "promoted by a person, without a decision of the gate",
        "figures": {},
        "verdicts": {},
    }


def _withdrawn(release: PlacementRelease) -> Document:
    return {
        "outcome": NOT_PROMOTED,
        "reason": "withdrawn by a person; `presage models promote --model placement "
        f"{release.release_id}` promotes it again",
    }


def _exists(uri: str) -> bool:
    path = database_path(uri)
    return path is None or path.is_file()


def _known(release: PlacementRelease, target: Path, uri: str, policy: PlacementGatePolicy) -> bool:
    """Return whether the decision file is the gate's decision on these inputs."""
    try:
        found = json.loads(target.read_text())
        alias = read_alias(uri, CHAMPION_ALIAS, PLACEMENT.model) if _exists(uri) else None
    except READ_ERRORS:
        return False
    champion = None if alias is None else alias.release_id
    if "experiment" in found or found.get("challenger") != release.release_id:
        return False
    if champion == release.release_id:
        return bool(found["outcome"] == PROMOTED)
    is_same = found["asked"] == _digest(release, champion, policy)
    return is_same and found["outcome"] == NOT_PROMOTED and _exists(uri)


def _write(decided: Document, target: Path) -> None:
    text = json.dumps(decided, indent=2, sort_keys=True) + "\n"
    write_atomically(target, lambda partial: partial.write_text(text))


def main(argv: list[str] | None = None) -> None:
    """Run the stage from the command line."""
    parser = argparse.ArgumentParser(description="DVC stage: placement release -> registry")
    parser.add_argument("release", type=Path, help="release folder")
    parser.add_argument("decision", type=Path, help="JSON file to write the decision to")
    args = parser.parse_args(argv)
    policy, uri = read_params("placement.gate", PlacementGatePolicy), configured_uri()
    release = load_placement_release(args.release.resolve())
    target = args.decision.resolve()
    if experiment():
        with contextlib.chdir(workspace()):  # a relative path to the registry starts there
            decided = judge_experiment(release, target, uri=uri, policy=policy)
    elif _known(release, target, uri, policy):
        decided = json.loads(target.read_text())
    else:
        decided = promote_placement(release, target, uri=uri, policy=policy)
    print(  # noqa: T201
        f"placement release {release.release_id} {decided['outcome']}: {decided['reason']}"
    )


if __name__ == "__main__":
    run_stage(main)
