from hypothesis import given
from hypothesis import strategies as st

from presage.pipelines.evaluation.fit_members import member_parts


@given(members=st.integers(1, 300), slots=st.integers(1, 100))
def test_parts_are_consecutive_of_about_equal_size_and_never_of_a_single_member(members, slots):
    parts = member_parts(members, slots)
    sizes = [part.stop - part.start for part in parts]

    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(members))
    assert len(parts) <= slots
    assert max(sizes) - min(sizes) <= 1
    assert members == 1 or min(sizes) >= 2
