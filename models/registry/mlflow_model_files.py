"""MLflow model files: they let MLflow's own commands load a registered release.

They name the function that loads the folder, and its inputs and outputs. The release's files stay
unchanged, and a server of Presage does not fetch the model files.
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
from presage.features.job.job_description import Job, JobFeatures
from presage.features.quantities.quantity_registry import INTERFERENCE, job_quantities
from presage.models.release.release import SIGNATURE, Release, release_files

LOADER = "presage.serving.predictor.mlflow_model"
DEFAULT_COVERAGE = 0.8  # as in the service

_BATCH, _PIXELS, _CLASSES = 32, 784, 10  # of the example
_ANY_DEVICE = "cpu-2"  # for a release without measured devices


@contextmanager
def mlflow_model_folder(release: Release) -> Iterator[Path]:
    """Yield a temporary folder with the files to store in the registry."""
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
    """Return the MLflow signature: the columns of requests and responses."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, ParamSchema, ParamSpec, Schema

    inputs = [
        ColSpec(AnyType(), "job"),
        ColSpec("string", "device"),
        ColSpec("string", "colocation", required=False),
    ]
    outputs = [ColSpec("string", name) for name in ("job_id", "device", "release_id")]
    required = {name for name, quantity in job_quantities().items() if quantity.in_proto}
    for name in (*job_quantities(), INTERFERENCE.forecast_field):
        is_required = name in required
        outputs += [
            ColSpec("double", f"{name}_{which}", required=is_required)
            for which in ("median", "low", "high")
        ]
        outputs.append(ColSpec("boolean", f"{name}_in_domain", required=is_required))
    outputs += [
        ColSpec("boolean", "fits", required=False),
        ColSpec("double", "fit_probability", required=False),
    ]
    coverage = ParamSpec("coverage", "double", DEFAULT_COVERAGE)
    return ModelSignature(Schema(inputs), Schema(outputs), ParamSchema([coverage]))


def make_example(release: Release) -> list[dict[str, Any]]:
    """Return an example request: a linear classifier on a device in training."""
    trained = [kind for kinds in release.trained_devices.values() for kind in sorted(kinds)]
    kind = max(sorted(trained), key=trained.count, default=_ANY_DEVICE)
    return [{"job": asdict(_classifier()), "device": kind}]


def _classifier() -> JobFeatures:
    """Return a linear layer from images to classes, trained with SGD in fp32."""
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
