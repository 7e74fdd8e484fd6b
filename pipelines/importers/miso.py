"""MISO (SoCC 2022): training steps in one MIG slice of an A100, from 1 of its 7 parts to all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from presage.errors import TableError
from presage.pipelines.importers.imported import Imported, Origin
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.public_job import PublicModel, add_job
from presage.pipelines.importers.published_file import DOCS, find_files, read_csv, read_json

ORIGIN = Origin("miso", "https://github.com/boringlee24/socc22-miso, mps/models/logs/mig/", "MIT")
DEVICE, CAMPAIGN = "a100-40gb", "miso"
SLICES = 7
PRECISION = "tf32"  # TensorFlow's default on an A100


def _keras(family: str, variant: str, elements: int) -> PublicModel:
    return PublicModel(family, variant, "adam", elements, framework="tensorflow", in_zoo=False)


BERT_BASE_CASED = {
    "width": 768, "depth": 12, "vocabulary": 28_996, "positions": 512, "tokens": 512,
}  # fmt: skip
# From upstream's mps/models/*_train.py, all Keras on TensorFlow. The zoo has BERT and CycleGAN; for
# the others it has only related models, whose graphs would be a guess.
MODELS = {
    "bert": replace(
        _keras("transformer_encoder", "bert-base-t512", 512), in_zoo=True, sizes=BERT_BASE_CASED
    ),
    "cyclegan": replace(_keras("cyclegan", "r9-s256", 2 * 3 * 256 * 256), in_zoo=True),
    "deepspeech2": _keras("deepspeech2", "gru-h512", 193 * 600),
    "embedding": PublicModel(
        "text_cnn", "glove100-t200", "rmsprop", 200, framework="tensorflow", in_zoo=False
    ),
    "gnn": _keras("gnn", "mpnn-bbbp", 24 * 29),
    "mobilenet": _keras("mobilenet", "v2-s32-imagenet-stem", 3 * 32 * 32),
    "resnet": _keras("resnet", "50-s32-imagenet-stem", 3 * 32 * 32),
    "transformer": _keras("transformer_encoder", "timeseries-t500", 500),
}
COLUMNS = {"mig_slice": str, "model": str, "batch_size": int, "n_steps": int,
           "step_time_median_s": float}  # fmt: skip
SLICE = re.compile(r"([1-7])g\.\d+gb")
LOG = re.compile(r"(?P<slice>[1-7]g\.\d+gb)_(?P<model>[a-z0-9]+?)_train(?P<batch>\d+)\.json(\.gz)?")
MIXES = re.compile(r".*(mix|dummy).*\.(json|csv)(\.gz)?")


@dataclass(frozen=True, slots=True)
class Steps:
    """Training steps of a model in a slice."""

    mig_slice: str
    model: str
    batch_size: int
    steps: int
    step_s: float


def read(path: Path, imported: Imported, graphs: GraphCache) -> None:
    """Read the tidied table, or upstream's logs of every step, with a file per slice and job."""
    expected = "mig_isolated_step_time.csv, or upstream's mps/models/logs/mig/*_train*.json"
    patterns = ("mig_isolated_step_time.csv*", "*gb_*_train*.json*", "*mix*")
    for file in find_files(path, patterns, expected):
        for steps in _steps(file, expected):
            _add(steps, file, imported, graphs)


def _steps(file: Path, expected: str) -> Iterator[Steps]:
    if match := LOG.fullmatch(file.name):
        yield _from_log(file, match)
    elif MIXES.fullmatch(file.name):
        raise TableError(
            f"{file}: mixes of MISO are not read (14,000 are there, 2,800 of them distinct and "
            f"without a step time of each job); give {expected}"
        )
    else:
        for row in read_csv(file, COLUMNS).to_dict("records"):
            yield Steps(
                row["mig_slice"], row["model"], row["batch_size"], row["n_steps"],
                row["step_time_median_s"],
            )  # fmt: skip


def _from_log(file: Path, match: re.Match[str]) -> Steps:
    epochs = read_json(file, "seconds of each step, by epoch")
    try:
        seconds = [float(second) for steps in epochs.values() for second in steps]
    except (TypeError, ValueError) as error:
        raise TableError(f"{file}: a step is no number of seconds ({error}); {DOCS}") from error
    if not seconds:
        raise TableError(f"{file}: no step was timed; {DOCS}")
    return Steps(match["slice"], match["model"], int(match["batch"]), len(seconds), median(seconds))


def _add(steps: Steps, file: Path, imported: Imported, graphs: GraphCache) -> None:
    match = SLICE.fullmatch(steps.mig_slice)
    if match is None or steps.step_s <= 0:
        raise TableError(
            f"{file}: {steps.step_s} s in slice {steps.mig_slice!r}; a slice is named '3g.20gb', "
            f"a step takes more than 0 s: {DOCS}"
        )
    if steps.model not in MODELS:
        imported.skip("a model that is none of MISO's eight")
        return
    job_id = f"miso/{steps.model}/b{steps.batch_size}"
    add_job(
        imported, graphs, job_id, MODELS[steps.model], batch_size=steps.batch_size,
        precision=PRECISION,
    )  # fmt: skip
    imported.execution(
        job_id, DEVICE, campaign=CAMPAIGN, share=int(match[1]) / SLICES, sharing_mode="mig",
        steps=steps.steps, step_time_median_s=steps.step_s,
    )  # fmt: skip
