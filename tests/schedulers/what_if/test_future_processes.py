"""Futures in several processes: the same answers, dead processes, deadlines."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path

import pytest

from presage.errors import ConfigError, PresageError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.topology import Vertex, flat_topology
from presage.schedulers.policies.fifo import Fifo
from presage.schedulers.what_if import future_processes
from presage.schedulers.what_if.future_processes import Deadline
from presage.schedulers.what_if.snapshot import Past, PastJob
from presage.schedulers.what_if.what_if import what_if
from tests.schedulers.clusters import cluster, job
from tests.schedulers.what_if.paused import Known, paused

JOBS = [job(f"j{i}", float(i)) for i in range(12)]
DURATIONS = {one.job_id: 100.0 + 10 * i for i, one in enumerate(JOBS)}


class KilledElsewhere(Fifo):
    """First in, first out; it kills each process but one."""

    def __init__(self) -> None:
        super().__init__()
        self.home = os.getpid()

    def decide(self, state, forecasts, rng):
        if os.getpid() != self.home:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(state, forecasts, rng)


class Unhurried(Fifo):
    """First in, first out, with pauses."""

    def decide(self, state, forecasts, rng):
        time.sleep(0.2)
        return super().decide(state, forecasts, rng)


@pytest.fixture(autouse=True)
def _processes_for_small_questions(monkeypatch):
    monkeypatch.setattr(future_processes, "START_S", 0.0)


def answers(processes: int, policy="sjf", **options):
    past = Past([PastJob(job(f"p{i}", 600.0 * i), 600.0 * i + 90, 80.0) for i in range(12)])
    jobs = [job(one.job_id, 7200.0 + one.submit_s) for one in JOBS]
    snapshot = paused(cluster(2), jobs, DURATIONS, at_s=7300.0, past=past)
    forecaster = Known({**DURATIONS, **{f"p{i}": 80.0 for i in range(12)}}, high=1.5, slowdown=1.2)
    return what_if(
        snapshot, list(snapshot.pending), policy=policy, forecaster=forecaster, samples=6,
        processes=processes, **options,
    )  # fmt: skip


# Worked examples ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["sjf", "packing", "las"])
def test_answers_do_not_depend_on_the_number_of_processes(policy):
    """Under packing, workers need slowdowns that only the forecaster's process can ask for."""
    assert answers(3, policy) == answers(1, policy)


def child_processes() -> set[str]:
    """Return the ids of the child processes, without the one of multiprocessing itself."""
    lists = [one.read_text().split() for one in Path("/proc/self/task").glob("*/children")]
    pids = {pid for one in lists for pid in one}
    return {
        pid for pid in pids if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


def test_no_process_is_left_after_an_answer():
    before = child_processes()
    answers(2)
    assert child_processes() <= before


def test_a_short_question_starts_no_process(monkeypatch):
    monkeypatch.setattr(future_processes, "START_S", 60.0)
    monkeypatch.setattr(future_processes, "done_by_workers", None)

    assert answers(2) == answers(1)


def test_a_pickled_cluster_has_its_nodes_and_links_and_no_cached_values():
    wired = Cluster(
        (Node("a", 2, "v100", 2**34), Node("b", 1, "h100", 2**36)),
        flat_topology([Vertex("a", "node", (0, 1)), Vertex("b", "node", (2,))]),
    )
    assert wired.kinds and wired.topology.node_paths

    copied = pickle.loads(pickle.dumps(wired))

    assert copied == wired
    assert copied.kinds == wired.kinds


# Wrong and slow -------------------------------------------------------------------------------


def test_a_process_that_dies_is_an_error_with_its_reason():
    with pytest.raises(PresageError, match="killed by SIGKILL"):
        answers(2, KilledElsewhere())


def test_workers_stop_at_the_deadline_and_the_complete_futures_answer():
    begin_s = time.monotonic()

    found = answers(2, Unhurried(), should_stop=Deadline(begin_s + 4.0))

    assert time.monotonic() - begin_s < 60.0
    assert {one.basis.samples for one in found} < {*range(6)}


@pytest.mark.parametrize("processes", [0, 65])
def test_a_number_of_processes_out_of_range_is_rejected(processes):
    with pytest.raises(ConfigError, match=f"processes={processes}"):
        answers(processes)
