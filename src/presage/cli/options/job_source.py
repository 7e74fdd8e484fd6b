"""Features of the jobs that are named on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.errors import InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.serving.client import job_features

# Defaults of a model; a JSON job has its own values.
BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION = 32, 1000, "sgd", "fp32"
# A binary or text graph, and a checkpoint's graph; a folder is a SavedModel.
TENSORFLOW_SUFFIXES = (".pb", ".pbtxt", ".meta")


def read_job(
    source: str,
    *,
    batch_size: int | None = None,
    iterations: int | None = None,
    optimizer: str | None = None,
    precision: str | None = None,
    dims: Sequence[str] | None = None,
) -> JobFeatures:
    """Return the features of an ONNX file, TensorFlow graph, JSON job or ``module:function``.

    None means "not given": a JSON job has its own values, a model has the defaults above.

    Raises
    ------
    GraphError
        The model cannot be read or traced, the function fails, or has no parameter for a batch
        size that was given.
    InvalidJobError
        The JSON file does not describe a job, an option contradicts it, or a dimension is not
        NAME=N.
    """
    path = Path(source)
    if path.suffix == ".json":
        fixed = {"batch-size": batch_size, "optimizer": optimizer, "precision": precision}
        return _from_json(path, iterations, [name for name, given in fixed.items() if given])
    settings: dict[str, Any] = {
        "batch_size": batch_size or BATCH_SIZE,
        "iterations": iterations or ITERATIONS,
        "optimizer": optimizer or OPTIMIZER,
        "precision": precision or PRECISION,
    }
    if ":" in source and not path.exists():
        from presage.cli.options.user_function import trace_function

        return trace_function(source, **settings, batch_is_given=batch_size is not None)
    is_tensorflow = path.is_dir() or path.suffix in TENSORFLOW_SUFFIXES
    read = job_features.from_tensorflow if is_tensorflow else job_features.from_onnx
    return read(path, dims=dict(_dimension(text) for text in dims or ()), **settings)


def _from_json(path: Path, iterations: int | None, changed: Sequence[str]) -> JobFeatures:
    if changed:
        raise InvalidJobError(
            f"{path}: --{changed[0]} cannot change a JSON job, whose operators were counted at its "
            "own value; leave it out, or extract the job again with `presage features MODEL "
            f"--{changed[0]} ... --json`"
        )
    features = job_features.read_json_file(path)
    if iterations is None:
        return features
    return replace(features, job=replace(features.job, iterations=iterations))


def _dimension(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    try:
        number = int(size)
    except ValueError:
        number = 0
    if not name or number < 1:
        raise InvalidJobError(
            f"--dim {text!r} is not NAME=N with N >= 1; write it like --dim sequence=128"
        )
    return name, number
