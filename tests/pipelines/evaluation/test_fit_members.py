"""Parts of the networks of a cross-validation: the same with and without a cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from presage.models.training.splits import MANY_ROWS
from presage.pipelines.evaluation.fit_members import PART, member_parts


@given(members=st.integers(1, 300), rows=st.integers(1, 2 * MANY_ROWS))
def test_parts_are_consecutive_and_depend_on_the_table_alone(members, rows):
    parts = member_parts(members, rows)
    sizes = [part.stop - part.start for part in parts]

    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(members))
    assert sizes[:-1] == ([PART] * (len(sizes) - 1) if rows >= MANY_ROWS else [])
