"""Tracing on all cores: results of success, of a dead worker, and of an interrupt."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

import psutil
import pytest

from presage.features.graph.op_graph import OpGraph
from presage.features.graph.step_memory import MemoryEstimate
from presage.pipelines.importers.public_models import trace_ahead as module
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.importers.public_models.trace_ahead import (
    WORTH_PROCESSES,
    MissingGraphs,
    trace_ahead,
)
from tests.features.examples import node
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
RECIPES = [f"recipe {i}" for i in range(2 * WORTH_PROCESSES)]  # as few as are worth two processes


def traced() -> OpGraph:
    return OpGraph((node(),), 1000, 9000, 784, MemoryEstimate(4000, 4000, 0, 1000, 0, 0))


def killed() -> OpGraph:
    """Kill the process, as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "usable_cores", lambda: 2)
    return GraphCache(tmp_path / "graphs")


def requested_graphs(graphs, makes):
    asked = MissingGraphs(graphs)
    for recipe, make in makes.items():
        assert asked.graph(recipe, make) is None
    return asked


def test_missing_graphs_are_in_the_cache_afterwards(graphs):
    graphs.graph(RECIPES[0], traced)
    told: list[str] = []
    again = GraphCache(graphs.folder, on_trace=told.append)
    more = [*RECIPES, "one more"]

    trace_ahead(requested_graphs(again, dict.fromkeys(more, traced)), again)

    assert sorted(told) == sorted(more[1:])
    assert all(again.has(recipe) for recipe in more)
    assert again.graph("one more", killed) == traced()


def test_a_few_graphs_are_not_traced_ahead(graphs):
    trace_ahead(requested_graphs(graphs, dict.fromkeys(RECIPES[1:], killed)), graphs)

    assert not any(graphs.has(recipe) for recipe in RECIPES)


def test_a_dead_worker_leaves_complete_graphs_and_no_process(graphs):
    makes = dict.fromkeys(RECIPES, traced) | {RECIPES[9]: killed}

    trace_ahead(requested_graphs(graphs, makes), graphs)

    assert not active_children()
    assert not graphs.has(RECIPES[9])
    # The pool's end may leave a partial file of a worker that was writing; it is never read.
    for kept in graphs.folder.glob("*.json.gz"):
        assert json.loads(gzip.decompress(kept.read_bytes()))
    assert all(graphs.graph(recipe, traced) == traced() for recipe in RECIPES)


SLOW = """
import sys, time
from pathlib import Path
from presage.pipelines.importers.public_models import trace_ahead as module
from presage.pipelines.importers.public_models.graph_cache import GraphCache

FOLDER = Path(sys.argv[1])

def slow():
    (FOLDER / "began").touch()
    time.sleep(1)

if __name__ == "__main__":
    module.usable_cores = lambda: 2
    graphs = GraphCache(FOLDER / "graphs")
    wanted = module.MissingGraphs(graphs)
    for i in range(200):
        wanted.graph(f"recipe {i}", slow)
    module.trace_ahead(wanted, graphs)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_soon_and_leaves_no_process(tmp_path, number):
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    running = subprocess.Popen(
        [sys.executable, script, tmp_path], start_new_session=True, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "began").exists() or running.poll() is not None)
        assert running.poll() is None
        children = psutil.Process(running.pid).children(recursive=True)
        began = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(running.pid, number)  # as Ctrl-C in a terminal does
        else:
            running.send_signal(number)
        said = running.communicate(timeout=60)[1].decode()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)

    assert said.strip().endswith("KeyboardInterrupt") == (number == signal.SIGINT)
    assert time.monotonic() - began < 30  # not the 100 seconds that all of them take
    assert children
    assert psutil.wait_procs(children, timeout=5)[1] == []
