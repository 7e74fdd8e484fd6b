"""The same elastic job gets the same sizes on a live cluster and in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.elastic_live.devices import DEVICES, DEVICES_OF_A_NODE, KIND
from benchmarks.elastic_live.live import run_live
from benchmarks.elastic_live.page import live_sizes, simulated_sizes
from benchmarks.elastic_live.simulated import run_simulated
from benchmarks.elastic_live.trace import Curves, Submission

from presage.features.graph.op_graph import OpGraph
from presage.features.graph.step_memory import MemoryEstimate
from presage.pipelines.importers.imported import Imported, Origin
from presage.schedulers.core.speedup import fewest_nodes
from tests.features.examples import node
from tests.serving.support.processes import free_port
from tests.support.slow_tests import all_faults

BATCH = 16
MODEL = f"test/linear/b{BATCH}"
STEP_S = 0.2  # on one device


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Write tables of a model that scales linearly with its number of devices."""
    made = Imported(Origin("test", "a test", "none"))
    graph = OpGraph((node(),), 1000, 9000, 784, MemoryEstimate(4000, 4000, 0, 1000, 0, 0))
    for batch in (BATCH // 4, BATCH):  # a step takes as long as its samples on each device
        job_id, step_s = f"test/linear/b{batch}", STEP_S * batch / BATCH
        made.job(
            job_id, graph=graph, name="linear", family="test", precision="fp32",
            batch_size=batch, optimizer="sgd",
        )  # fmt: skip
        made.execution(job_id, KIND, campaign="test", step_time_median_s=step_s)
        for devices in range(1, DEVICES + 1):
            nodes = fewest_nodes(devices, DEVICES_OF_A_NODE)
            made.scale_out(
                job_id, KIND, campaign="test", devices=devices, nodes=nodes, placement="",
                step_time_s=step_s, sync_time_s=0.0,
            )  # fmt: skip
    made.write(tmp_path / "tables")
    return tmp_path / "tables"


@all_faults
def test_an_elastic_job_shrinks_for_another_live_and_simulated(tables, tmp_path):
    curves = Curves(tables)
    jobs = [
        Submission("wide", 0.0, MODEL, 50, 2, is_elastic=True),
        Submission("rigid", 6.0, MODEL, 150, 1, is_elastic=False),
    ]
    for attempt in ("first", "second"):  # on a busy machine a step takes longer than its curve says
        folder = tmp_path / attempt
        live = run_live(jobs, curves, tables, folder, port=free_port(), startup_s=0.0)
        simulated = run_simulated(jobs, curves, live)
        assert [one["phase"] for one in live.values()] == ["FINISHED", "FINISHED"]
        if simulated_sizes(simulated["wide"]) == live_sizes(live["wide"]):
            break

    assert live_sizes(live["wide"]) == [4, 3, 0]
    assert simulated_sizes(simulated["wide"]) == [4, 3, 0]
