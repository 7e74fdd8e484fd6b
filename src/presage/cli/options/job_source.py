"""What a person may name as a job on the command line, turned into job features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from presage.errors import InvalidJobError
from presage.features.job.job import JobFeatures
from presage.serving.client import job_features

# What a model is taken to be trained with, unless it is said.
BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION = 32, 1000, "sgd", "fp32"
# A graph, binary or text, and a checkpoint's; a folder is a SavedModel.
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
    """Features of an ONNX file, a TensorFlow graph, a JSON file of job features, or
    ``module:function``.

    None is for what was not said: a JSON file has its own, a model the defaults above.

    Raises
    ------
    GraphError
        The model cannot be read or traced, or the function fails.
    InvalidJobError
        The JSON file does not describe a job, or was extracted at what is now said otherwise; a
        dimension is not NAME=N.
    """
    path = Path(source)
    if path.suffix == ".json":
        fixed = {"batch-size": batch_size, "optimizer": optimizer, "precision": precision}
        return _from_json(path, iterations, [name for name, given in fixed.items() if given])
    batch_size, iterations = batch_size or BATCH_SIZE, iterations or ITERATIONS
    optimizer, precision = optimizer or OPTIMIZER, precision or PRECISION
    if ":" in source and not path.exists():
        from presage.cli.options.user_function import trace_function

        return trace_function(
            source,
            batch_size=batch_size,
            iterations=iterations,
            optimizer=optimizer,
            precision=precision,
        )
    is_tensorflow = path.is_dir() or path.suffix in TENSORFLOW_SUFFIXES
    read = job_features.from_tensorflow if is_tensorflow else job_features.from_onnx
    return read(
        path,
        batch_size=batch_size,
        iterations=iterations,
        dims=dict(_dimension(text) for text in dims or ()),
        optimizer=optimizer,
        precision=precision,
    )


def _from_json(path: Path, iterations: int | None, said_otherwise: Sequence[str]) -> JobFeatures:
    if said_otherwise:
        raise InvalidJobError(
            f"{path}: --{said_otherwise[0]} cannot change a JSON job, whose operators were counted "
            f"at its own; leave it out, or extract the job again with `presage features MODEL "
            f"--{said_otherwise[0]} ... --json`"
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
