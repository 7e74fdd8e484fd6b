"""Trainings that the gate may promote, with its verdict, for several seeds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.placement.comparisons import TRAINED
from benchmarks.placement.report import Store, table
from presage.placement.stage.placement_gate import PlacementGatePolicy, decide
from presage.placement.stage.promote_placement import makespan_ratios
from presage.placement.stage.train_placement import PlacementSettings, train_placement
from presage.schedulers.policies.failures.learnt.placement_release import load_placement_release

LABELLED, VALIDATED, EVALUATED = 1500, 500, 1500


def section(store: Store) -> Iterator[str]:
    """Yield the section."""
    yield "## Would the gate promote it?\n"
    yield (
        f"Releases by the DVC stage on 16 GPUs with checkpoints, with labelled: {LABELLED}, "
        f"validated: {VALIDATED} and evaluated: {EVALUATED}. Each row is another seed of the "
        "training; all are compared with the rules on the same batches of no training. Intervals "
        "are those of the gate, over batches:\n"
    )
    found = [store.value(f"release_{seed}", partial(judged, seed)) for seed in TRAINED]
    yield from table(
        ["seed", "over least-failing", "over expected", "95 % interval", "the gate"],
        (
            [
                f"{seed}",
                f"{one['figures']['least-failing']['ratio']:.4f}",
                f"{one['figures']['expected']['ratio']:.4f}",
                "{low:.4f} to {high:.4f}".format(**one["figures"]["expected"]),
                f"{one['outcome']}: {one['reason']}",
            ]
            for seed, one in zip(TRAINED, found, strict=True)
        ),
    )
    promoted = sum(one["outcome"] == "promoted" for one in found)
    yield f"The gate promotes {promoted} of {len(found)} releases.\n"


def judged(seed: int) -> dict[str, Any]:
    """Return the decision of the gate about a training, without a champion."""
    settings = PlacementSettings(
        gpus=(16,), labelled=LABELLED, validated=VALIDATED, evaluated=EVALUATED, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        train_placement(settings, Path(folder))
        release = load_placement_release(Path(folder))
        ratios = makespan_ratios(release, PlacementGatePolicy())
    found: dict[str, Any] = json.loads(json.dumps(decide(release.release_id, None, ratios, "")))
    return found
