"""Features of the jobs that are named on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from presage.cli.options.feature_cache import cached_features
from presage.errors import GraphError, InvalidJobError
from presage.features.job.job_description import JobFeatures
from presage.serving.client import job_features

# Defaults of a model; a JSON job has its own values.
BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION = 32, 1000, "sgd", "fp32"
# Name of a job of the profiler's zoo, such as resnet/w16-d8/b32/sgd; importing its parser takes a
# second.
_ZOO_NAME = re.compile(r"[a-z0-9_]+/[a-z0-9-]+/b\d+/[a-z]+(?:/[a-z0-9]+)?")
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
    """Return the features of a file, ``module:function`` or job of the profiler's zoo.

    None means "not given": JSON and zoo jobs have their own values, a model the defaults above.

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
    fixed = {"batch-size": batch_size, "optimizer": optimizer, "precision": precision}
    changed = [name for name, given in fixed.items() if given]
    if path.suffix == ".json":
        return _from_json(path, iterations, changed)
    if _ZOO_NAME.fullmatch(source) and not path.exists():
        return _from_zoo(source, iterations or ITERATIONS, changed)
    settings: dict[str, Any] = {
        "batch_size": batch_size or BATCH_SIZE,
        "iterations": iterations or ITERATIONS,
        "optimizer": optimizer or OPTIMIZER,
        "precision": precision or PRECISION,
    }
    if ":" in source and not path.exists():
        return _from_function(source, settings, batch_is_given=batch_size is not None)
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


def _from_function(
    source: str, settings: Mapping[str, Any], *, batch_is_given: bool
) -> JobFeatures:
    """Trace the model that a user's function returns, unless its features are cached."""

    def trace() -> JobFeatures:
        from presage.cli.options.user_function import trace_function

        return trace_function(source, **settings, batch_is_given=batch_is_given)

    others = {name: value for name, value in settings.items() if name != "iterations"}
    key = {"source": source, "batch_is_given": batch_is_given, **others}
    return cached_features(key, settings["iterations"], trace)


def _from_zoo(name: str, iterations: int, changed: Sequence[str]) -> JobFeatures:
    """Trace a job of the zoo, unless its features are cached; its name states how it runs."""
    if changed:
        raise InvalidJobError(
            f"{name}: --{changed[0]} cannot change a job of the zoo; write it into the name, "
            "FAMILY/VARIANT/bBATCH/OPTIMIZER, with /PRECISION at the end unless it is fp32"
        )
    return cached_features({"zoo": name}, iterations, lambda: _trace_zoo(name, iterations))


def _trace_zoo(name: str, iterations: int) -> JobFeatures:
    from presage.pipelines.profiling.graph_tracing import trace
    from presage.pipelines.profiling.zoo import parse

    config = parse(name)
    try:
        graph = trace(config)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # torch's, of sizes
        raise GraphError(str(error).partition("\n")[0]) from error
    return job_features.from_graph(
        graph,
        name=config.model,
        batch_size=config.batch_size,
        iterations=iterations,
        job_id=config.name,
        family=config.family,
        precision=config.precision,
    )


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
