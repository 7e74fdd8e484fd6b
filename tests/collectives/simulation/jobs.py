"""Jobs for tests of the phase simulator."""

from __future__ import annotations

from hypothesis import strategies as st

from presage.collectives.core.costs import Link
from presage.collectives.simulation.phased_job import PhasedJob, overlapping_calls

LINK = Link(latency_s=1e-5, bandwidth_bytes_per_s=1e8)
MB = 1_000_000


def phased(name="a", *, ranks=4, compute_s=0.5, sizes=(10 * MB, 20 * MB), **options):
    """Return a job; its iteration by ring takes 0.95 s and more, on the switch 0.8 s."""
    options.setdefault("switches", ("s",))
    return PhasedJob(
        name, ranks, link=LINK, calls=overlapping_calls(compute_s, sizes, 0.0), **options
    )


def job_lists(jitter=0.0):
    """Strategy for lists of jobs at one switch."""
    one = st.tuples(
        st.integers(2, 9),
        st.floats(0.05, 1),
        st.lists(st.integers(MB, 40 * MB), min_size=1, max_size=4),
        st.sampled_from([0.0, 0.5]),
        st.floats(0, 1),
    )

    def build(rows):
        return [
            PhasedJob(
                f"job{i}", ranks, ("s",), LINK, overlapping_calls(compute_s, sizes, backward),
                start_s, jitter,
            )
            for i, (ranks, compute_s, sizes, backward, start_s) in enumerate(rows)
        ]  # fmt: skip

    return st.lists(one, min_size=1, max_size=4).map(build)
