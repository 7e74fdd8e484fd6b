"""DVC stage: a release is registered, judged beside the champion, and promoted if it is better.

The registry lies outside of DVC, so this stage runs on every `dvc repro`, and a second run must
change nothing. The registry is asked who is champion, by the short way of
:func:`presage.models.champion.peek_champion`: a pointer file of our own would be quicker still
but would be wrong after a rollback from another machine. Nothing heavy is imported before that.

The decision file holds no time, no run id and no microseconds: equal releases, tables and policy
give equal bytes. The microseconds are in the printed table and in MLflow.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from presage.features.errors import RegistryError, ReleaseError
from presage.models import gate
from presage.models.champion import peek_champion
from presage.models.gate import Decision, GatePolicy
from presage.models.registry_uri import configured_uri
from presage.models.release import Release, load_release
from presage.pipelines.stage import read_params, read_table, run_stage, write_atomically

if TYPE_CHECKING:
    from presage.models.registry import RegisteredRelease, Registry
    from presage.models.score import Scores

TABLES = ("solo.parquet", "interference.parquet")
PROMOTED, NOT_PROMOTED = "promoted", "not promoted"

Document = dict[str, Any]


@dataclass(frozen=True)
class Judgement:
    """What the gate decided, and the figures of those it judged."""

    decision: Decision
    challenger: Scores
    champion: Scores | None


def promote(release: Release, features: Path, target: Path, *, uri: str, policy: GatePolicy) -> str:
    """Register a release and let the gate decide; ``target`` then says what, and so does this.

    Raises
    ------
    RegistryError
        The registry cannot be reached; or its champion changed while the gate was judging.
    """
    from presage.models.registry import Registry

    registry = Registry(uri)
    challenger = registry.resolve(registry.register(release, release.manifest["metrics"]))
    champion = registry.champion()
    is_champion = champion is not None and champion.version == challenger.version
    if is_champion:
        document = _read_about(target, release.release_id) or _last_word(challenger)
    elif challenger.withdrawn_at:
        document = _withdrawn(challenger)
    else:
        document = _decide(registry, release, challenger, champion, features, policy)
        if document["outcome"] == PROMOTED:
            _promote_over(registry, challenger, champion)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    write_atomically(target, lambda path: path.write_text(text))
    if is_champion:
        return _already(release)
    return f"release {release.release_id} {document['outcome']}: {document['reason']}"


def judge(
    release: Release,
    champion: RegisteredRelease | None,
    registry: Registry,
    features: Path,
    policy: GatePolicy,
) -> Judgement:
    """Score both on the same held-out rows, and decide.

    A champion that cannot be scored, because it was made for another feature schema or its files
    are damaged, is no measure: bounds alone decide then, and the reason says so.
    """
    from presage.models.score import score

    solo, interference = (read_table(features / name) for name in TABLES)
    ours = score(release, solo, interference)
    if champion is None:
        return Judgement(gate.decide(None, ours, policy), ours, None)
    with tempfile.TemporaryDirectory() as folder:
        try:
            loaded = registry.download(champion.version, Path(folder) / "champion")
            theirs = score(loaded, solo, interference)
        except ReleaseError as error:
            decision = gate.decide(None, ours, policy)
            why = str(error).replace(f"{folder}/", "")
            reason = f"{decision.reason}; champion {champion.release_id} cannot be scored: {why}"
            return Judgement(replace(decision, reason=reason), ours, None)
    return Judgement(gate.decide(theirs, ours, policy), ours, theirs)


def _decide(
    registry: Registry,
    release: Release,
    challenger: RegisteredRelease,
    champion: RegisteredRelease | None,
    features: Path,
    policy: GatePolicy,
) -> Document:
    """The gate's word, from the registry where the same question was asked before."""
    asked = _question(release, champion, features, policy)
    if challenger.decision is not None and challenger.decision["asked"] == asked:
        return dict(challenger.decision)
    from rich.console import Console

    registry.challenge(challenger.version)
    with Console(stderr=True).status("scoring champion and challenger on the held-out jobs"):
        judgement = judge(release, champion, registry, features, policy)
    print_table(judgement.decision)
    document = _document(release.release_id, champion, judgement.decision, asked)
    figures = {"challenger": judgement.challenger, "champion": judgement.champion or {}}
    registry.log_decision(challenger.version, document, figures)
    return document


def _promote_over(
    registry: Registry, challenger: RegisteredRelease, champion: RegisteredRelease | None
) -> None:
    """Promote, unless another champion came in since: the gate did not judge against that one.

    MLflow has no compare-and-set; what is left open is the moment between this check and the move.
    """
    now = registry.champion()
    if (now and now.version) != (champion and champion.version):
        raise RegistryError(
            f"{registry.uri}: the champion changed while {challenger.release_id} was being judged; "
            "run `dvc repro promote` again"
        )
    registry.promote(challenger.version)


def _already(release: Release) -> str:
    return f"release {release.release_id} is champion already: nothing to do"


def _question(
    release: Release, champion: RegisteredRelease | None, features: Path, policy: GatePolicy
) -> str:
    """Digest of all that a decision rests on, the gate's own rules among it."""
    from importlib.util import find_spec

    rules = [find_spec(f"presage.models.{name}") for name in ("gate", "score", "metrics")]
    files = [features / name for name in TABLES]
    files += [Path(spec.origin) for spec in rules if spec is not None and spec.origin]
    question = {
        "challenger": release.release_id,
        "champion": champion and champion.release_id,
        "files": [hashlib.sha256(path.read_bytes()).hexdigest() for path in files],
        "policy": asdict(policy),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]


def _document(
    challenger: str, champion: RegisteredRelease | None, decision: Decision, asked: str
) -> Document:
    """A decision as the file and the registry keep it."""
    return {
        "challenger": challenger,
        "champion": champion and champion.release_id,
        "asked": asked,
        "outcome": PROMOTED if decision.promote else NOT_PROMOTED,
        "reason": decision.reason,
        "rows": [_stable(asdict(row)) for row in decision.rows],
    }


def _stable(row: dict[str, Any]) -> dict[str, Any]:
    """A row without what differs from run to run: microseconds, the last digits."""
    is_time = row["metric"] == "latency_us"
    return {
        name: (None if is_time else _rounded(value)) if isinstance(value, float) else value
        for name, value in row.items()
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _read_about(target: Path, release_id: str) -> Document | None:
    """The decision file, if there is one and it is about this release."""
    try:
        document: Document = json.loads(target.read_text())
    except (OSError, ValueError):
        return None
    is_about = isinstance(document, Mapping) and document.get("challenger") == release_id
    return document if is_about else None


def _last_word(champion: RegisteredRelease) -> Document:
    """What the gate said of the champion, if it was ever asked."""
    if champion.decision is not None:
        return dict(champion.decision)
    return {
        "challenger": champion.release_id,
        "champion": None,
        "asked": "",
        "outcome": PROMOTED,
        "reason": "a person made it champion; the gate was not asked",
        "rows": [],
    }


def _withdrawn(challenger: RegisteredRelease) -> Document:
    reason = (
        "a person put another release in its place; to have it back: "
        f"presage models promote {challenger.release_id}"
    )
    return _last_word(challenger) | {"outcome": NOT_PROMOTED, "reason": reason}


def print_table(decision: Decision) -> None:
    """The table that was decided by, within 80 columns: DVC gives a stage no more."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="gate, on the held-out jobs")
    for title in ("metric", "champion", "challenger", "limit", "verdict"):
        justify: Any = "left" if title in ("metric", "verdict") else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    styles = {gate.BETTER: "green"} | dict.fromkeys(gate.REFUSING, "red")
    predictor = ""
    for row in decision.rows:
        if row.predictor != predictor:
            predictor = row.predictor
            table.add_section()
            table.add_row(predictor, style="bold")
        before = "-" if row.champion is None else f"{row.champion:.4g}"
        cells = (row.metric, before, f"{row.challenger:.4g}", _limit(row), row.verdict)
        table.add_row(*cells, style=styles.get(row.verdict))
    Console().print(table)


def _limit(row: gate.Row) -> str:
    if row.at_least is not None and row.at_most is not None:
        return f"{row.at_least:.4g} to {row.at_most:.4g}"
    low = "" if row.at_least is None else f">= {row.at_least:.4g}"
    return low if row.at_most is None else f"<= {row.at_most:.4g}"


def main(argv: list[str] | None = None) -> None:
    """Command line of the stage."""
    parser = argparse.ArgumentParser(description="DVC stage: release -> registry, perhaps champion")
    parser.add_argument("release", type=Path, help="release folder")
    parser.add_argument("features", type=Path, help="folder of featurize")
    parser.add_argument("decision", type=Path, help="JSON file to write the decision to")
    args = parser.parse_args(argv)
    policy = read_params("promote", GatePolicy, besides=["registry"])
    uri, release = configured_uri(), load_release(args.release)
    about = _read_about(args.decision, release.release_id)
    if about is not None and peek_champion(uri) == release.release_id:
        print(_already(release))  # noqa: T201
        return
    print(promote(release, args.features, args.decision, uri=uri, policy=policy))  # noqa: T201


if __name__ == "__main__":
    run_stage(main)
