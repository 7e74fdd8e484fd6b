"""What lets MLflow's own commands load a registered release: a few small files beside it.

They say which function loads the folder, what goes in and what comes out. The release's files are
as they were, and a server of Presage does not fetch these.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from presage.features.graph.op_graph import OpNode
from presage.features.graph.op_stats import summarize
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job import Job, JobFeatures
from presage.features.quantities.registry import INTERFERENCE, job_quantities
from presage.models.release.release import SIGNATURE, Release, release_files

LOADER = "presage.serving.predictor.mlflow_model"
DEFAULT_COVERAGE = 0.8  # as the service's

_BATCH, _PIXELS, _CLASSES = 32, 784, 10  # of the example
_ANY_DEVICE = "cpu-2"  # where a release was measured on none


@contextmanager
def mlflow_model_folder(release: Release) -> Iterator[Path]:
    """A folder as it is stored in the registry, for as long as it is needed."""
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        mlflow.pyfunc.save_model(
            path,
            loader_module=LOADER,
            signature=make_signature(),
            input_example=(make_example(release), {"coverage": DEFAULT_COVERAGE}),
            pip_requirements=[f"presage[serve]=={version('presage')}", "pandas"],
        )
        for name in release_files(release.folder):
            shutil.copyfile(release.folder / name, path / name)
        if (release.folder / SIGNATURE).is_file():
            shutil.copyfile(release.folder / SIGNATURE, path / SIGNATURE)
        yield path


def make_signature() -> Any:
    """What rows a release takes, and what it answers."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, ParamSchema, ParamSpec, Schema

    asked = [
        ColSpec(AnyType(), "job"),
        ColSpec("string", "device"),
        ColSpec("string", "colocation", required=False),
    ]
    told = [ColSpec("string", name) for name in ("job_id", "device", "release_id")]
    always_told = {name for name, quantity in job_quantities().items() if quantity.in_proto}
    for name in (*job_quantities(), INTERFERENCE.forecast_field):
        always = name in always_told
        told += [
            ColSpec("double", f"{name}_{which}", required=always)
            for which in ("median", "low", "high")
        ]
        told.append(ColSpec("boolean", f"{name}_in_domain", required=always))
    told += [
        ColSpec("boolean", "fits", required=False),
        ColSpec("double", "fit_probability", required=False),
    ]
    coverage = ParamSpec("coverage", "double", DEFAULT_COVERAGE)
    return ModelSignature(Schema(asked), Schema(told), ParamSchema([coverage]))


def make_example(release: Release) -> list[dict[str, Any]]:
    """A row to ask it with: a linear classifier, on a device that it knows."""
    trained = [kind for kinds in release.trained_devices.values() for kind in sorted(kinds)]
    kind = max(sorted(trained), key=trained.count, default=_ANY_DEVICE)
    return [{"job": asdict(_classifier()), "device": kind}]


def _classifier() -> JobFeatures:
    """A linear layer from images to classes, trained by plain gradient descent in fp32."""
    weights, samples, classes = _PIXELS * _CLASSES, _BATCH * _PIXELS, _BATCH * _CLASSES
    flops, moved = 2 * _BATCH * weights, 4 * (samples + weights + classes)
    nodes = (
        OpNode("linear", "MatMul", "forward", samples, classes, weights, flops, moved),
        OpNode("mm", "MatMul", "backward", samples + classes, weights, 0, flops, moved),
        OpNode("sgd", "Update", "optimizer", 2 * weights, weights, 0, 2 * weights, 12 * weights),
    )
    memory = MemoryEstimate(
        parameter_bytes=4 * weights,
        gradient_bytes=4 * weights,
        optimizer_state_bytes=0,
        activation_bytes=4 * classes,
        workspace_bytes=0,
        batch_bytes=4 * samples,
    )
    job = Job("linear-classifier", "linear", "mlp", "torch", "fp32", _BATCH, 1000, _PIXELS)
    return JobFeatures(job, summarize(nodes), weights, memory)
