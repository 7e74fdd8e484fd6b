"""Stages with baselines, with a few boosted trees: hundreds take a minute, and test nothing.

``python -m tests.support.quick_evaluate MODULE`` stands for ``python -m MODULE`` in a copied
``dvc.yaml``; baselines are named and scored as ever.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import presage
from presage.models.training import baselines
from presage.pipelines.evaluation import solo_baselines
from presage.pipelines.stages import evaluate
from presage.pipelines.stages.stage import run_stage

STAGES = {module.__name__: module for module in (evaluate, solo_baselines)}
ROOT = Path(__file__).parents[2]


# What a subprocess finds presage and this module by, in a checkout that is elsewhere.
def environment() -> dict[str, str]:
    """Return what `dvc` and `presage` are run with: as a user's shell has it, and this checkout."""
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{Path(presage.__file__).parents[1]}:{ROOT}",
        "OMP_NUM_THREADS": "1",
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def few_trees() -> Any:
    """As :func:`presage.models.training.baselines.make_boosted_trees`, but for their number."""
    return baselines.make_boosted_trees().set_params(max_iter=3)


def copy_stages(folder: Path) -> None:
    """Copy ``dvc.yaml``, with these stages in place of those of the same modules."""
    stages = (ROOT / "dvc.yaml").read_text()
    for module in STAGES:
        assert stages.count(f"python -m {module}") == 1
        stages = stages.replace(
            f"python -m {module}", f"python -m tests.support.quick_evaluate {module}"
        )
    (folder / "dvc.yaml").write_text(stages)


def main() -> None:
    """Run it."""
    baselines.BASELINES = {**baselines.BASELINES, "boosted_trees": few_trees}
    STAGES[sys.argv.pop(1)].main()


if __name__ == "__main__":
    run_stage(main)
