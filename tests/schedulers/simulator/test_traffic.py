"""Gradient traffic of gangs over each level of a topology: requirement C4."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.action import Preempt, Start
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.core.topology import Topology, Vertex
from presage.schedulers.policies.policy_registry import policy_of
from presage.schedulers.simulator.results.schedule_metrics import compute_metrics
from presage.schedulers.simulator.traffic import GangRun, bytes_by_level
from tests.features.examples import features
from tests.schedulers.clusters import GIB, cluster, job, simulated
from tests.schedulers.policies.gang.test_gang_optimisers import TREE
from tests.schedulers.simulator.test_simulator import Scripted, down
from tests.support.slow_tests import examples

SENDS = features()
GRADIENT_BYTES = SENDS.memory.gradient_bytes


def sender(job_id="a", submit_s=0.0, *, gpus, iterations=10, **more):
    return job(job_id, submit_s, gpus=gpus, iterations=iterations, features=SENDS, **more)


def gang_run(one, *devices, progress=1.0):
    return GangRun(
        one, tuple(Allocation(device, FULL_DEVICE_MILLI, GIB) for device in devices), progress
    )


def pairs_on_two_nodes():
    """Return nodes of two NVLink pairs; device numbers differ from the order of the tree."""
    return Topology(
        Vertex("all", "rack", (
            Vertex("a", "node", (Vertex("a0", "nvlink", (0, 4)), Vertex("a1", "nvlink", (1, 5)))),
            Vertex("b", "node", (Vertex("b0", "nvlink", (2, 6)), Vertex("b1", "nvlink", (3, 7)))),
        ))
    )  # fmt: skip


def test_c4_a_ring_of_four_over_two_nodes():
    # In depth-first order: 0 and 4 by NVLink, 4 to 2 between nodes, 2 to 3 within one, 3 to 0.
    # Each of the ring's edges carries 2 * 3 / 4 of 4,000 bytes, ten times.
    assert GRADIENT_BYTES == 4000
    found = bytes_by_level([gang_run(sender(gpus=4), 4, 3, 2, 0)], pairs_on_two_nodes())
    assert found == {"nvlink": 60_000.0, "node": 60_000.0, "rack": 120_000.0}
    # A ring of two goes there and back.
    found = bytes_by_level([gang_run(sender(gpus=2), 0, 4, progress=0.5)], pairs_on_two_nodes())
    assert found == {"nvlink": 40_000.0, "node": 0.0, "rack": 0.0}


@given(
    gangs=st.lists(
        st.tuples(
            st.lists(st.integers(0, 17), min_size=1, max_size=18, unique=True), st.floats(0, 1)
        ),
        max_size=5,
    )
)
def test_the_total_sent_does_not_depend_on_the_route(gangs):
    gang_runs = [gang_run(sender(gpus=len(on)), *on, progress=part) for on, part in gangs]
    sent = sum(part * 10 * 2 * (len(on) - 1) * GRADIENT_BYTES for on, part in gangs)
    found = bytes_by_level(gang_runs, TREE)
    assert sum((found or {}).values()) == pytest.approx(sent)


def test_unknown_traffic_is_not_reported():
    silent = [job("a", gpus=2), sender(gpus=2, iterations=0), sender(gpus=1)]
    assert bytes_by_level([gang_run(one, *range(one.gpus)) for one in silent], TREE) is None
    done = simulated(cluster(2), policy_of("fifo"), silent[:1], {"a": 1.0})
    assert compute_metrics(done).bytes_by_level is None


def test_a_moved_gang_sends_from_its_devices_and_lost_work_counts():
    # Two nodes of two. 400 of 1,000 s on the first one, the rest on both; then its node fails.
    both = (Allocation(0, FULL_DEVICE_MILLI, 16 * GIB), Allocation(2, FULL_DEVICE_MILLI, 16 * GIB))
    script = {
        0.0: [Start("a", cluster(2, 2).full_allocations[:2])],
        400.0: [Preempt("a"), Start("a", both)],
    }
    one = sender(gpus=2, iterations=1000, checkpointing=Checkpointing(restart_s=10.0))
    done = simulated(
        cluster(2, 2), Scripted(script), [one], {"a": 1000.0}, faults=down(610.0, 610.0, node=1)
    )
    # 200 s were done there, and are repeated on as few nodes as possible.
    found = compute_metrics(done).bytes_by_level
    assert found == pytest.approx({"node": 4000.0 * 2 * (400 + 600), "cluster": 4000.0 * 2 * 200})
    assert [one.progress for one in done.gang_runs] == pytest.approx([0.4, 0.2, 0.6])


@settings(deadline=None, max_examples=examples(40))
@given(
    gpus=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    policy=st.sampled_from(("fifo", "las:threshold_s=30", "srtf", "gang", "packing")),
)
def test_work_that_is_not_lost_is_done_once(gpus, policy):
    jobs = [sender(str(i), 7.0 * i, gpus=count) for i, count in enumerate(gpus)]
    nodes = tuple(Node(f"n{i}", 3, "v100", 16 * GIB) for i in range(2))
    done = simulated(Cluster(nodes), policy_of(policy), jobs, {one.job_id: 50.0 for one in jobs})
    for one in jobs:
        parts = [there.progress for there in done.gang_runs if there.job.job_id == one.job_id]
        assert sum(parts) == pytest.approx(1.0 if one.gpus > 1 else 0.0)
