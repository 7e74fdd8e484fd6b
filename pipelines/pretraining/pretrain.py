"""Training of the pretrained release from permissively licensed tables and our own campaigns.

``make pretrained`` runs it: every stage of ``dvc.yaml`` on more tables, without networks to start
from. It takes twelve minutes of one core once the operator graphs of a thousand models are cached.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from presage.features.quantities.quantity_registry import INTERFERENCE, QUANTITIES, solo_quantities
from presage.pipelines.evaluation.model_card import model_card
from presage.pipelines.importers.import_run import DEFAULT_FOLDER, import_source, shown_graphs
from presage.pipelines.pretraining.pretrained_networks import NETWORKS, RELEASE, STARTS
from presage.pipelines.stages import build_release as release
from presage.pipelines.stages import evaluate, featurize, train, train_interference
from presage.pipelines.stages.stage import run_stage
from presage.system.files.atomic_file import write_atomically
from presage.system.files.atomic_folder import put_in_place

# Apache-2.0 or MIT, with steps of complete jobs. Excludes gpumemnet (no licence) and lucid
# (non-commercial use only).
SOURCES = ("timm", "torchvision", "gavel", "parvagpu", "miso", "pollux")
CAMPAIGNS = (Path("data/profiles/cpu-2"), Path("data/profiles/cpu-2-zoo"))


def pretrain(datasets: Path, target: Path, work: Path) -> None:
    """Import the sources under ``datasets``, and write the release to ``target``.

    Raises
    ------
    TableError
        A source's files are missing or invalid.
    """
    folders, sources = [], []
    with shown_graphs(enabled=True) as graphs:
        for source in SOURCES:
            folders.append(DEFAULT_FOLDER / source)
            sources.append(import_source(source, datasets / source, folders[-1], graphs=graphs))
            _log(f"{source} in {folders[-1]}")
    features, models, evaluation = (work / name for name in ("features", "models", "evaluation"))
    featurize.featurize([*folders, *CAMPAIGNS], features)
    _log(f"features in {features}")
    arguments = ["--features", str(features)]
    for name in solo_quantities():
        train.main([name, *arguments, "--target", str(models / name)])
        _log(f"{name} in {models / name}")
    arguments += ["--models", str(models)]
    train_interference.main([*arguments, "--target", str(models / INTERFERENCE.name)])
    _log(f"{INTERFERENCE.name} in {models / INTERFERENCE.name}")
    evaluate.main([*arguments, "--target", str(evaluation)])
    networks = work / NETWORKS
    shutil.rmtree(networks, ignore_errors=True)
    networks.mkdir(parents=True)
    for predictor in QUANTITIES:
        for name in STARTS:
            if (learnt := models / predictor / f"{name}.npz").is_file():
                shutil.copyfile(learnt, networks / f"{predictor}-{name}.npz")
    made = release.assemble_release(features, models, evaluation, target / RELEASE)
    put_in_place(networks, target / NETWORKS)
    card = model_card(made, sources, evaluate.read_forecasts(models))
    write_atomically(target / "README.md", lambda path: path.write_text(card))
    _log(f"release {made.release_id} in {target}")


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--datasets",
        type=Path,
        default=Path(os.environ.get("PRESAGE_DATASETS", "data/public/upstream")),
        help="folder with a subfolder per source (docs/pipeline/importing.md)",
    )
    parser.add_argument("--target", type=Path, default=Path("data/pretrained"))
    parser.add_argument("--work", type=Path, default=Path("data/.pretraining"))
    args = parser.parse_args(argv)
    pretrain(args.datasets, args.target, args.work)


if __name__ == "__main__":
    run_stage(main)
