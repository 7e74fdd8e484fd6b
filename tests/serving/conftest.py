"""Small real release with hand-written models, so that every forecast is known.

memory = memory_prior_bytes x MEMORY_FACTORS, step time = roofline_s x STEP_FACTORS, utilization =
share x UTILIZATION, slowdown = 1 + FACTOR x (the other members' median utilization, summed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Device, Share, catalogue
from presage.features.device.device_class import DEVICE_CLASSES
from presage.features.graph.op_stats import OpStats
from presage.features.graph.step_memory import MemoryEstimate
from presage.features.job.job_description import Job, JobFeatures
from presage.features.placement import Placement
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.training_domain import fit_domain
from presage.models.release.make_probes import make_probes
from presage.models.release.probes import Probes
from presage.models.release.release import Release
from presage.models.release.release_content import ReleaseContent, write_release
from presage.serving.client.client import PresageClient
from presage.serving.predictor.predictor import Predictor
from tests.serving.support.running_server import RunningServer, start_server

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
MEMORY_FACTORS = (0.5, 1.0, 2.0, 3.0, 4.0)
STEP_FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0)
UTILIZATION = (0.0, 0.25, 0.5, 0.75, 1.0)
SLOWDOWN_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5)
NOVELTY_MARGINS = {0.05: 1.0, 0.1: 0.5}
SETUP_S = {"": (1.0, 2.0, 3.0, 4.0, 5.0), "cpu-2": (10.0, 20.0, 30.0, 40.0, 50.0)}
MEASURED = replace(catalogue()["cpu-2"], memory_bandwidth_bytes_per_s=1.5e10)


def make_job(job_id: str = "job", *, batch_size: int = 32, **changes: Any) -> JobFeatures:
    """Return a job of two operators whose work grows with the batch."""
    fields: dict[str, Any] = {
        "name": "mlp-3",
        "family": "mlp",
        "framework": "torch",
        "precision": "fp32",
        "iterations": 1000,
        "input_elements": 784,
    }
    fields |= {k: changes.pop(k) for k in list(changes) if k in fields}
    n = 1000 * batch_size
    features = JobFeatures(
        job=Job(job_id=job_id, batch_size=batch_size, **fields),
        op_stats=(
            OpStats("MatMul", "forward", 5, 3, n, 3 * n, 2 * n, 6e3 * n, 100.0 * n, 99_000),
            OpStats("Relu", "backward", -2, 2, n, 2 * n, 2 * n, 2.0 * n, 8.0 * n),
        ),
        parameters=100_000,
        memory=MemoryEstimate(
            parameter_bytes=400_000,
            gradient_bytes=400_000,
            optimizer_state_bytes=800_000,
            activation_bytes=400_000 + 40_000 * batch_size,
            workspace_bytes=8_000 * batch_size,
            batch_bytes=2_000 * batch_size,
        ),
    )
    return replace(features, **changes)


def make_models() -> dict[str, bytes]:
    """Return the four predictors, by the contract in presage.models.release.release."""
    return {
        "compute_utilization": column_times("share", UTILIZATION),
        "memory": column_times("memory_prior_bytes", MEMORY_FACTORS),
        "step_time": column_times("roofline_s", STEP_FACTORS),
        "interference": others_utilization(SLOWDOWN_FACTORS),
    }


def column_times(column: str, factors: tuple[float, ...]) -> bytes:
    """Return a model that multiplies one column of the features by a factor per level."""
    nodes = [
        helper.make_node("Gather", ["features", "position"], ["column"], axis=1),
        helper.make_node("Mul", ["column", "factors"], ["quantiles"]),
    ]
    constants = {
        "position": np.array([columns("full").index(column)], dtype=np.int64),
        "factors": np.array([factors], dtype=np.float32),
    }
    inputs = {"features": ["rows", len(columns("full"))]}
    return onnx_bytes(nodes, constants, inputs, ["rows", len(factors)])


def others_utilization(factors: tuple[float, ...]) -> bytes:
    """Return a model: members, mask -> 1 + factor x the sum of the other members' utilization."""
    nodes = [
        helper.make_node("Gather", ["members", "position"], ["utilization"], axis=2),
        helper.make_node("Mul", ["utilization", "mask"], ["own"]),
        helper.make_node("ReduceSum", ["own", "member_axis"], ["all"], keepdims=1),
        helper.make_node("Sub", ["all", "own"], ["others"]),
        helper.make_node("Unsqueeze", ["others", "last_axis"], ["column"]),
        helper.make_node("Mul", ["column", "factors"], ["excess"]),
        helper.make_node("Add", ["excess", "one"], ["quantiles"]),
    ]
    constants = {
        "position": np.array(MEMBER_COLUMNS.index("utilization"), dtype=np.int64),
        "member_axis": np.array([1], dtype=np.int64),
        "last_axis": np.array([2], dtype=np.int64),
        "factors": np.array([[factors]], dtype=np.float32),
        "one": np.array(1.0, dtype=np.float32),
    }
    inputs = {
        "members": ["colocations", "members", len(MEMBER_COLUMNS)],
        "mask": ["colocations", "members"],
    }
    return onnx_bytes(nodes, constants, inputs, ["colocations", "members", len(factors)])


def onnx_bytes(nodes: Any, constants: Any, inputs: Any, output: Any) -> bytes:
    graph = helper.make_graph(
        nodes,
        "by-hand",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def make_release(folder: Path, precisions: Sequence[str] = ("fp32",), **changes: Any) -> Release:
    """Write a release whose training data is jobs of batch 1 to 256 on shares of a cpu-2."""
    trained = [
        Placement(make_job(batch_size=batch), MEASURED, Share(share, "cpu-quota"))
        for batch in (1, 256)
        for share in (0.25, 1.0)
    ]
    parts: dict[str, Any] = {
        "models": make_models(),
        "levels": LEVELS,
        "devices": [MEASURED],
        "trained_devices": {key: ["cpu-2"] for key in QUANTITIES},
        "max_members": {"processor": 3, "gpu": 1},
        "domains": {
            "processor": fit_domain(
                matrix(trained), ["small", "small", "large", "large"], list(precisions)
            )
        },
        "novelty_margins": {
            name: {
                novelty: dict.fromkeys(DEVICE_CLASSES, NOVELTY_MARGINS)
                for novelty in ("job", "device")
            }
            for name in QUANTITIES
        },
        "setup_s": SETUP_S,
        "metrics": {"step_time": {"mape": 0.125}},
        "data_digest": "0" * 16,
        "versions": {"presage": "test"},
    }
    parts |= changes
    kinds = ["cpu-2"] * len(trained)
    asked = matrix(trained).astype(np.float32)
    parts.setdefault("probes", _probes(parts["models"], asked, kinds))
    return write_release(folder, ReleaseContent(**parts))


def _probes(models: dict[str, bytes], asked: Any, kinds: Sequence[str]) -> Probes:
    """Return probes of the models; of broken models, those of the hand-written ones."""
    try:
        found = make_probes(models, asked, kinds, median=2)
    except Exception:
        return make_probes(make_models(), asked, kinds, median=2)
    sane = all(
        np.isfinite(q).all() and q.shape[-1] == len(LEVELS) for q in found.quantiles.values()
    )
    return found if sane else make_probes(make_models(), asked, kinds, median=2)


@pytest.fixture(scope="session")
def release(tmp_path_factory) -> Release:
    return make_release(tmp_path_factory.mktemp("release") / "release")


@pytest.fixture
def release_with(tmp_path):
    """Function that writes another release, with changed parts."""

    def make(**changes: Any) -> Release:
        return make_release(tmp_path / "other-release", **changes)

    return make


@pytest.fixture(scope="session")
def handmade_models():
    """Functions that make the models, for tests that need a broken one."""
    return SimpleNamespace(
        all=make_models,
        column_times=column_times,
        others_utilization=others_utilization,
        onnx_bytes=onnx_bytes,
    )


@pytest.fixture(scope="session")
def constants():
    """Constants of the hand-written models."""
    return SimpleNamespace(
        levels=LEVELS,
        memory=MEMORY_FACTORS,
        step=STEP_FACTORS,
        slowdown=SLOWDOWN_FACTORS,
        setup_s=SETUP_S,
    )


@pytest.fixture(scope="session")
def job():
    return make_job


@pytest.fixture(scope="session")
def cpu() -> Device:
    return MEASURED


@pytest.fixture(scope="session")
def server(release):
    with start_server(release) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer):
    with PresageClient(server.target) as connected:
        yield connected


@pytest.fixture(params=["in-process", "grpc"])
def backend(request, release):
    """Prediction backend, in process or over gRPC."""
    if request.param == "in-process":
        return Predictor(release)
    return request.getfixturevalue("client")


@pytest.fixture(scope="module")
def channel(server):
    """Channel that sends larger messages than the server accepts."""
    options = [("grpc.max_send_message_length", 32 * 1024 * 1024)]
    with grpc.insecure_channel(server.target, options=options) as opened:
        yield opened
