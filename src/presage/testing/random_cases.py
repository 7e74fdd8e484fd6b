"""Random cases for the policy checks; needs hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.core.forecasts import RuntimePrediction
from presage.schedulers.core.job import NO_COST, Checkpointing, Job
from presage.testing.case import GIB, Case

MEMORY_BYTES = {"v100": 16 * GIB, "k80": 12 * GIB}
_SIZES = tuple(range(1, 10))


def cluster_of(*nodes: tuple[int, str]) -> Cluster:
    """Return a cluster of nodes n0, n1, ... with so many devices of a kind each."""
    made = (
        Node(f"n{i}", devices, kind, MEMORY_BYTES[kind]) for i, (devices, kind) in enumerate(nodes)
    )
    return Cluster(tuple(made))


CLUSTERS = st.sampled_from(
    (
        cluster_of((2, "v100"), (2, "v100")),
        cluster_of((1, "v100"), (2, "v100")),
        cluster_of((4, "v100"), (2, "v100"), (1, "v100")),
        cluster_of((2, "v100"), (1, "k80"), (2, "k80")),
        cluster_of((1, "k80"), (4, "v100"), (1, "k80")),
    )
)
_numbers = st.sampled_from((float("nan"), float("inf"), -1.0, 0.0, 3.0, 1e30))
PREDICTIONS = st.one_of(
    st.none(),
    st.builds(RuntimePrediction, _numbers, _numbers, _numbers),
    st.builds(
        RuntimePrediction,
        st.sampled_from((4.0, 9.0)),
        st.sampled_from((300, 600)),
        st.sampled_from((2 * GIB, 7 * GIB)),
    ),
)


@st.composite
def traces(
    draw: st.DrawFn, sizes: tuple[int, ...] = _SIZES
) -> tuple[tuple[Job, ...], dict[str, float]]:
    """Draw a few jobs and their run times; some are latency-sensitive, some too large to run."""
    jobs, duration_s, now_s = [], {}, 0.0
    for i in range(draw(st.integers(1, 10))):
        now_s += draw(st.sampled_from((0.0, 3.0)))
        gpus = draw(st.sampled_from(sizes))
        job = Job(
            str(i),
            now_s,
            gpus=gpus,
            min_gpus=draw(st.sampled_from((0, 0, 1, gpus))),
            max_gpus=draw(st.sampled_from((0, 0, 2 * gpus))),
            latency_sensitive=draw(st.booleans()),
            priority=draw(st.integers(0, 1)),
            compute_milli=draw(st.sampled_from((1000, 1000, 300, 500))),
            memory_bytes=draw(st.sampled_from((0, 0, 4 * GIB, 14 * GIB))),
            model=draw(st.sampled_from(("", "a", "b"))),
            kinds=draw(st.sampled_from(((), (), ("v100",), ("k80",), ("k80", "v100")))),
            checkpointing=draw(st.sampled_from((NO_COST, Checkpointing(2.0, 1.0, 3.0)))),
        )
        jobs.append(job)
        duration_s[job.job_id] = draw(st.sampled_from((1.0, 8.0, 5000.0)))
    return tuple(jobs), duration_s


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a cluster, a trace and forecasts."""
    jobs, duration_s = draw(traces())
    predictions = draw(st.lists(PREDICTIONS, min_size=1, max_size=3))
    return Case(draw(CLUSTERS), jobs, duration_s, tuple(predictions))
