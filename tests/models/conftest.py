"""Small releases with handmade networks, tables to score them on, and a registry.

In the tables log(measured / prior) is normal with deviation NOISE. A release's networks multiply
the prior by ``bias`` and take the deviation for ``spread``: 1 and NOISE are the truth.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper

from presage.features.colocation_member import MEMBER_COLUMNS
from presage.features.columns.schema import columns
from presage.features.device.device import catalogue
from presage.features.quantities.quantity_registry import QUANTITIES
from presage.models.calibration.training_domain import fit_domain
from presage.models.gate.release_gate import GatePolicy
from presage.models.registry.registry import Registry
from presage.models.release.probes import Probes
from presage.models.release.release import Release
from presage.models.release.release_content import ReleaseContent, write_release
from presage.models.training.solo_rows import SOLO_KEY

LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
NOISE = 0.1
PRIORS = {
    "compute_utilization": "compute_bound_share",
    "memory": "memory_prior_bytes",
    "step_time": "roofline_s",
}
POLICY: dict[str, Any] = {
    "tolerance": {
        "mape": 0.1,
        "median_ape": 0.15,
        "within_10pct": 0.15,
        "mae": 0.1,
        "rmsle": 0.1,
        "interval_width": 0.25,
        "interval_score": 0.1,
        "in_domain": 0.1,
    },
    "min_improvement": 0.02,
    "confidence": 0.95,
    "resamples": 500,
    "seed": 0,
    "min_jobs": 8,
    "coverage_points": 5,
    "coverage_risk": 0.01,
    "latency_us": 100000,  # other processes disturb these tests
    "latency_ratio": 1000,
    "latency_free_us": 100000,
    "size_bytes": 10_000_000,
    "size_ratio": 3,
}

MakeRelease = Callable[..., Release]


def factors(bias: float, spread: float) -> np.ndarray:
    z = [NormalDist().inv_cdf(level) for level in LEVELS]
    return (bias * np.exp(np.array(z) * spread)).astype(np.float32)


def to_onnx(nodes: list[Any], constants: dict[str, np.ndarray], **inputs: list[Any]) -> bytes:
    *leading, _ = next(iter(inputs.values()))
    graph = helper.make_graph(
        nodes,
        "predictor",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("quantiles", TensorProto.FLOAT, [*leading, len(LEVELS)])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def solo_model(predictor: str, bias: float, spread: float) -> bytes:
    """Return a model of quantiles = prior x factors."""
    position = np.array([columns("full").index(PRIORS[predictor])])
    nodes = [
        helper.make_node("Gather", ["features", "position"], ["prior"], axis=1),
        helper.make_node("Mul", ["prior", "factors"], ["quantiles"]),
    ]
    constants = {"position": position, "factors": factors(bias, spread)}
    return to_onnx(nodes, constants, features=["rows", len(columns("full"))])


def interference_model(bias: float, spread: float) -> bytes:
    """Return a model of max(1, (1 + the co-runners' median utilization) x factors)."""
    constants = {
        "position": np.array(MEMBER_COLUMNS.index("utilization")),
        "factors": factors(bias, spread),
        "one": np.array(1, np.float32),
        "axis_1": np.array([1]),
        "axis_2": np.array([2]),
    }
    nodes = [
        helper.make_node("Gather", ["members", "position"], ["utilization"], axis=2),
        helper.make_node("Mul", ["utilization", "mask"], ["own"]),
        helper.make_node("ReduceSum", ["own", "axis_1"], ["total"], keepdims=1),
        helper.make_node("Sub", ["total", "own"], ["others"]),
        helper.make_node("Add", ["others", "one"], ["slowdown"]),
        helper.make_node("Unsqueeze", ["slowdown", "axis_2"], ["column"]),
        helper.make_node("Mul", ["column", "factors"], ["raw"]),
        helper.make_node("Max", ["raw", "one"], ["quantiles"]),
    ]
    shape = ["c", "k", len(MEMBER_COLUMNS)]
    return to_onnx(nodes, constants, members=shape, mask=["c", "k"])


@pytest.fixture(scope="session")
def make_release() -> MakeRelease:
    """Function that writes a release: ``make_release(folder, bias=1.0, spread=NOISE)``."""

    def make(folder: Path, *, bias: float = 1.0, spread: float = NOISE, **changes: Any) -> Release:
        split = {
            "mlp": {"rows": 40, "mape": 10 * bias, "within_10pct": 60 / bias, "coverage_80%": 79.0},
            "constant": {"rows": 40, "mape": 99.0},
        }
        manifest: dict[str, Any] = {
            "devices": [catalogue()["cpu-2"]],
            "trained_devices": {key: ["cpu-2"] for key in QUANTITIES},
            "max_members": {"processor": 4},
            "domains": {
                "processor": fit_domain(
                    np.ones((2, len(columns("full")))), ["one", "two"], ["fp32"] * 2
                )
            },
            "novelty_margins": {
                name: {"job": {"processor": {0.05: 0.0, 0.1: 0.0}}} for name in QUANTITIES
            },
            "setup_s": {"": [1.0] * len(LEVELS)},
            "probes": Probes(
                np.zeros((0, len(columns("full"))), np.float32),
                (),
                {name: np.zeros((0, len(LEVELS))) for name in QUANTITIES},
            ),
            "metrics": {"step_time": {"job": split, "family": split}},
            "data_digest": "d" * 64,
            "versions": {"torch": "2.13.0"},
            "trained_on": [],
        }
        models = {name: solo_model(name, bias, spread) for name in PRIORS}
        models["interference"] = interference_model(bias, spread)
        content = ReleaseContent(models=models, levels=LEVELS, **(manifest | changes))
        return write_release(folder, content)

    return make


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory, make_release: MakeRelease) -> dict[str, Any]:
    """``poor`` is within the bounds, ``good`` is better, ``blind`` is overconfident."""
    root = tmp_path_factory.mktemp("releases")
    return {
        "poor": make_release(root / "poor", bias=1.1, spread=0.16),
        "good": make_release(root / "good", data_digest="e" * 64),
        "blind": make_release(root / "blind", spread=0.01),
    }


def make_solo(rng: np.random.Generator, jobs: int) -> pd.DataFrame:
    features = {f"full.{name}": rng.uniform(1, 100, jobs) for name in columns("full")}
    features["full.compute_bound_share"] = rng.uniform(0.2, 0.6, jobs)
    noise = {name: np.exp(rng.normal(0, NOISE, jobs)) for name in PRIORS}
    measured = {name: noise[name] * features[f"full.{PRIORS[name]}"] for name in PRIORS}
    return pd.DataFrame(
        {
            "job_id": [f"job-{i}" for i in range(jobs)],
            "model": "net",
            "family": "mlp",
            "precision": "fp32",
            "device_kind": "cpu-2",
            "device_class": "processor",
            "machine": "m",
            "campaign": "c",
            "share": 1.0,
            "compute_utilization": measured["compute_utilization"],
            "memory_peak_bytes": measured["memory"],
            "step_time_median_s": measured["step_time"],
            "setup_s": 1.0,
            **features,
        }
    )


def make_interference(rng: np.random.Generator, solo: pd.DataFrame, count: int) -> pd.DataFrame:
    rows = []
    for colocation in range(count):
        members = rng.choice(len(solo), size=int(rng.integers(2, 5)), replace=False)
        utilization = solo["full.compute_bound_share"].to_numpy()[members]
        for member, row in enumerate(members):
            noise = np.exp(rng.normal(0, NOISE))
            rows.append(
                {
                    **solo.iloc[row][["family", *SOLO_KEY, "share"]],
                    "colocation": f"colocation-{colocation}",
                    "member": member,
                    "members": len(members),
                    "slowdown": (1 + utilization.sum() - utilization[member]) * noise,
                }
            )
    return pd.DataFrame(rows)


@pytest.fixture(scope="session")
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    solo = make_solo(rng, 400)
    return solo, make_interference(rng, solo, 250)


@pytest.fixture(scope="session")
def features_dir(tmp_path_factory: pytest.TempPathFactory, tables: Any) -> Path:
    folder = tmp_path_factory.mktemp("features")
    for name, table in zip(("solo", "interference"), tables, strict=True):
        table.to_parquet(folder / f"{name}.parquet")
    return folder


@pytest.fixture
def policy() -> GatePolicy:
    return GatePolicy(**POLICY)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow database without a release, to copy, because creating one takes seconds."""
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def folder_of_two(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path, releases: dict[str, Any]
) -> Path:
    """Registry with ``poor``, the champion, and ``good`` as versions 1 and 2."""
    folder = tmp_path_factory.mktemp("two") / "registry"
    shutil.copytree(empty_database.parent, folder)
    registry = Registry(f"sqlite:///{folder}/mlflow.db")
    for name in ("poor", "good"):
        registry.register(releases[name], releases[name].manifest["metrics"])
    registry.promote(1)
    return folder


@pytest.fixture
def two(tmp_path: Path, folder_of_two: Path) -> Registry:
    shutil.copytree(folder_of_two, tmp_path / "registry-of-two")
    return Registry(f"sqlite:///{tmp_path}/registry-of-two/mlflow.db")


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    (tmp_path / "registry").mkdir()
    shutil.copy(empty_database, tmp_path / "registry" / "mlflow.db")
    return f"sqlite:///{tmp_path}/registry/mlflow.db"
