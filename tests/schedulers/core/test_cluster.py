"""Tests of a cluster that gets more nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import ConfigError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.job import Job
from presage.schedulers.core.job_status import JobStatus, Phase
from presage.schedulers.core.ledger import Ledger
from presage.schedulers.core.queue import Queue

GIB = 2**30
MEMORY = {"k80": 12 * GIB, "v100": 32 * GIB, "h100": 80 * GIB}
PROPERTIES = (
    "first_device", "node_of", "full_allocations", "devices", "node_sizes", "kinds", "memory_of",
)  # fmt: skip


@st.composite
def node_lists(draw, first):
    sizes = draw(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([*MEMORY])), min_size=1))
    return [Node(f"n{i}", n, kind, MEMORY[kind]) for i, (n, kind) in enumerate(sizes, first)]


@given(node_lists(0), node_lists(1_000))
def test_an_extended_cluster_is_like_a_new_one(nodes, more):
    extended, new = Cluster(tuple(nodes)).extended(more), Cluster((*nodes, *more))

    assert extended == new
    for name in PROPERTIES:
        assert getattr(extended, name) == getattr(new, name)
    for name in ("node", "memory_bytes", "kind"):
        column = getattr(extended.columns, name)
        np.testing.assert_array_equal(column, getattr(new.columns, name))
        assert not column.flags.writeable
    assert extended.columns.kinds == new.columns.kinds
    for device in range(new.devices):
        assert extended.kind_of(device) == new.kind_of(device)
        assert extended.name_of(device) == new.name_of(device)
    assert extended.nodes_of(("v100",)) == new.nodes_of(("v100",))


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Node("n0", 1, "v100", 32 * GIB), "two nodes are called 'n0'"),
        (Node("n1", 1, "v100", 16 * GIB), "give them different kinds"),
    ],
)
def test_an_extended_cluster_is_checked(node, why):
    with pytest.raises(ConfigError, match=why):
        Cluster((Node("n0", 1, "v100", 32 * GIB),)).extended([node])


@given(node_lists(0), node_lists(1_000))
def test_an_extended_ledger_is_like_a_new_one_with_the_same_jobs(nodes, more):
    cluster = Cluster(tuple(nodes))
    job = Job("job", 0.0)
    status = JobStatus(Phase.RUNNING, 0.0, (Allocation(cluster.devices - 1, 400, GIB),))

    def ledger(on):
        made = Ledger(on, Queue(lambda _job, _status: ()))
        made.adopt(job, status)
        return made

    extended = ledger(cluster)
    whole = cluster.extended(more)
    extended.extend(whole, [whole.name_of(device) for device in range(whole.devices)])
    new = ledger(whole)

    assert extended.idle.bits() == new.idle.bits()
    assert extended.idle.count == new.idle.count
    assert [*extended.idle.emptiest()] == [*new.idle.emptiest()]
    assert extended.busy == new.busy == 1
    np.testing.assert_array_equal(extended.capacity.compute_milli, new.capacity.compute_milli)
    np.testing.assert_array_equal(extended.capacity.memory_bytes, new.capacity.memory_bytes)
    assert [*extended.device_ids] == [*new.device_ids]
    extended.fail(len(nodes), 1.0)
    assert extended.is_down(cluster.devices)
    last = whole.full_allocations[-1:]
    if len(more) > 1:
        extended.adopt(Job("other", 0.0), JobStatus(Phase.RUNNING, 1.0, last))
        assert extended.jobs_on(whole.devices - 1) == ("other",)
