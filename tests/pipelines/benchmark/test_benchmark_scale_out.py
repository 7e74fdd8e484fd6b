"""`presage benchmark scale-out`: rows of several devices, and unseen placements."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from presage.errors import TrainingError
from presage.features.device.node_spread import spread
from presage.features.graph.op_graph import OpGraph
from presage.features.graph.step_memory import MemoryEstimate
from presage.models.networks import scale_out_law as step_law
from presage.models.networks.scale_out_law import ring_bytes
from presage.models.training import baselines
from presage.pipelines.benchmark import benchmark_run as benchmark
from presage.pipelines.benchmark.benchmark_splits import split_folds
from presage.pipelines.benchmark.compute_time import compute_seconds
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.scaling.scale_out import CONFIG, ScaleOutTask
from presage.pipelines.benchmark.scaling.scale_rows import ScaleRows, scale_rows
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from tests.features.examples import node
from tests.pipelines.benchmark.blind import assert_blind
from tests.pipelines.public_files import gavel_tidied, pollux_tidied

TASK = ScaleOutTask(replace(CONFIG, steps=30, hidden=8))
GRADIENT_BYTES = 40_000_000
PLACEMENTS = ("1", "2", "4", "11", "12", "22", "111", "112", "1111", "222", "2222", "44")


class TrainedGraph(GraphCache):
    """Graph cache that returns the same small training step for every job."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))

    def graph(self, recipe, make):
        nodes = (node(flops=10**9), node(phase="backward", flops=10**9))
        memory = MemoryEstimate(GRADIENT_BYTES, GRADIENT_BYTES, 0, 1000, 0, 0)
        return OpGraph(nodes, 1000, 9000, 784, memory)


def pollux(folder: Path, model: str, *, batch_sizes=(32, 64, 128, 256)) -> Path:
    """Write an upstream file of placements by another law: computation, then communication."""
    rng, lines = np.random.default_rng(len(model)), ["placement,local_bsz,step_time,sync_time"]
    for placement in PLACEMENTS:
        where = spread(0, sum(map(int, placement)), " ".join(placement))
        for batch in batch_sizes:
            rate = 1e9 if where.nodes > 1 else 1e10
            sync_s = float(ring_bytes(np.array([GRADIENT_BYTES]), [where])[0]) / rate
            step_s = (0.01 + 1e-3 * batch + sync_s) * rng.normal(1, 0.02)
            lines.append(f"{placement},{batch},{step_s},{sync_s}")
    path = folder / f"pollux_t4_{model}_placements.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(TASKS, "scale-out", TASK)
    monkeypatch.setattr(step_law, "STEPS", 150)


def run(train, **options):
    return benchmark.run(
        "scale-out", train, options.pop("test", []), graphs=TrainedGraph(),
        progress=lambda done, total: None, **options,
    )  # fmt: skip


@pytest.mark.parametrize("split", ["placement", "count", "batch", "model"])
def test_every_step_is_predicted_by_networks_not_trained_on_its_group(split, tmp_path):
    files = [pollux(tmp_path, model) for model in ("cifar10", "bert", "ncf")]

    result = run(files, split=split)

    assert result.rows == 3 * 4 * len(PLACEMENTS)
    assert result.mlp["mape"] < result.baselines["constant"]["mape"]
    if split != "model":  # the graph here does not tell how long an unseen job computes
        assert result.baselines["linear"]["mape"] < 10  # on what the law leaves over
    assert 0 <= result.mlp["coverage"] <= result.mlp["coverage_90"] <= 100


@pytest.mark.parametrize("split", ["placement", "model"])
def test_no_forecast_of_a_held_out_step_depends_on_its_label(split, tmp_path, monkeypatch):
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")
    files = [pollux(tmp_path, model) for model in ("cifar10", "bert", "ncf")]
    rows = scale_rows(read_tables(files, TrainedGraph()))
    asked = (folds := split_folds(rows.metadata, split, seed=0)) == folds[0]
    before, after, other = (
        TASK.cross_forecast(
            replace(rows, measured=rows.measured * factor), split,
            seed=0, progress=lambda done, total: None,
        )
        for factor in (1.0, np.where(asked, 1.7, 1.0), np.where(asked, 1.0, 1.7))
    )  # fmt: skip
    assert_blind(asked, before, after, other)


def test_placements_are_held_out_by_default(tmp_path):
    assert run([pollux(tmp_path, "cifar10")]).split == "placement"


def test_a_table_is_predicted_by_networks_trained_on_another(tmp_path):
    train = [pollux(tmp_path, model) for model in ("cifar10", "bert")]

    result = run(train, test=[pollux(tmp_path, "ncf")])

    assert (result.split, result.rows) == ("test", 4 * len(PLACEMENTS))
    assert result.mlp["mape"] < 50


def test_a_split_by_device_needs_two(tmp_path):
    with pytest.raises(TrainingError, match="there is only 't4'"):
        run([pollux(tmp_path, "cifar10")], split="device")


# Rows -----------------------------------------------------------------------------------------


def test_rows_hold_the_spread_over_nodes(tmp_path):
    rows = scale_rows(read_tables(sorted(pollux_tidied(tmp_path).glob("*.csv")), TrainedGraph()))

    assert list(rows.metadata["placement"]) == ["1", "1 1 2", "7 devices of 6 nodes"]
    assert list(rows.metadata["count"]) == ["1", "4", "7"]
    assert rows.measured == pytest.approx([0.04, 0.09, 0.14])
    assert list(rows.facts["alone_s"]) == pytest.approx([0.0395, 0.04, 0.05])
    assert set(rows.facts["gradient_bytes"]) == {GRADIENT_BYTES}


def test_a_job_on_one_device_is_a_row_too(tmp_path):
    gavel_tidied(tmp_path)

    files = [tmp_path / "isolated.csv", tmp_path / "pairs.csv"]
    rows = scale_rows(read_tables(files, TrainedGraph()))

    assert list(rows.metadata["placement"]) == ["consolidated", "unconsolidated", "1"]
    assert [one.nodes for one in rows.spreads] == [1, 4, 1]
    assert rows.facts["alone_s"].isna().tolist() == [True, True, False]


# What computing takes -------------------------------------------------------------------------


def steps(**columns: list[object]) -> ScaleRows:
    """Return rows of one device each, with a roofline time of 10 ms a sample."""
    frame = pd.DataFrame(columns)
    frame["job"] = frame["model"] + "/b" + frame["batch_size"].astype(str)
    who = frame[["job", "model"]].assign(device="t4", kind=frame["model"])
    facts = frame[["batch_size", "alone_s"]].assign(roofline_s=0.01 * frame["batch_size"])
    return ScaleRows(who, facts, [spread(1, 1, "1")] * len(frame), np.ones(len(frame)))


def test_compute_time_is_measured_interpolated_or_scaled_from_the_roofline():
    rows = steps(
        model=["a", "a", "a", "a", "b"],
        batch_size=[10, 10, 20, 40, 10],
        alone_s=[0.2, 0.4, 0.5, 9.0, 9.0],
    )

    found = compute_seconds(rows, np.array([True, True, True, False, False]))

    # Of a: medians 0.3 and 0.5, so 0.1 + 0.02 x batch size; 3 and 2.5 times the roofline.
    assert found == pytest.approx([0.3, 0.3, 0.5, 0.9, 0.275])


def test_another_batch_size_is_scaled_by_the_roofline():
    rows = steps(model=["a", "a"], batch_size=[10, 20], alone_s=[0.3, 9.0])

    assert compute_seconds(rows, np.array([True, False])) == pytest.approx([0.3, 0.6])


def test_without_measurements_compute_time_is_the_roofline():
    rows = steps(model=["a"], batch_size=[10], alone_s=[np.nan])

    assert compute_seconds(rows, np.array([True])) == pytest.approx([0.1])
