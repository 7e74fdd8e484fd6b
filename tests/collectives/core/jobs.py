"""Jobs and views for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from presage.collectives.core.costs import Link
from presage.collectives.core.demand import Call, JobDemand
from presage.collectives.core.view import View

LINK = Link(latency_s=1e-5, bandwidth_bytes_per_s=1e6)  # 1 MB takes 1 s


def job(
    name="a", *, ranks=4, period_s=10.0, offsets_s=(0.0,), size=1_000_000, shift_s=0.0, **options
):
    """Return a job whose AllReduce takes 1 s on the switch and 1.5 s by ring.

    By default its computation hides what the switch saves.
    """
    options.setdefault("switches", ("s",))
    calls = tuple(Call(offset_s, size, shift_s) for offset_s in offsets_s)
    return JobDemand(name, ranks, link=LINK, period_s=period_s, calls=calls, **options)


def view(*jobs, slots=1, window=8, epoch=1):
    """Return a view of one switch."""
    names = sorted({name for one in jobs for name in one.switches})
    pairs = tuple((name, slots) for name in names)
    return View(epoch, pairs, jobs, (0,) * len(jobs), window)


def jobs(max_jobs=4):
    """Strategy for the jobs of a view: some predictable, some not."""
    periods = st.one_of(
        st.floats(0.5, 20), st.sampled_from([0.0, -1.0, float("nan"), float("inf")])
    )
    one = st.tuples(
        st.integers(1, 5), periods, st.floats(0, 20), st.integers(0, 5_000_000), st.floats(0, 1),
        st.sampled_from([None, 0.0]),
    )  # fmt: skip

    def build(rows):
        return tuple(
            job(
                f"job{i}",
                ranks=n,
                period_s=p,
                anchor_s=t,
                size=size,
                margin_s=margin,
                shift_s=shift,
            )
            for i, (n, p, t, size, margin, shift) in enumerate(rows)
        )

    return st.lists(one, min_size=1, max_size=max_jobs).map(build)
