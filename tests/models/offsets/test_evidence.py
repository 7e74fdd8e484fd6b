"""Sums of evidence: exact inverses, any order, bounded influence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.models.offsets.evidence import Evidence, EvidenceSums

LARGEST = 1.0
errors = st.floats(-4, 4)


def evidence(job: str, error: float, device: str = "gpu") -> Evidence:
    return Evidence((device, job), ((("device", device), 1.0), (("job", job), 1.0)), error)


some_evidence = st.builds(evidence, st.sampled_from("abc"), errors, st.sampled_from(["gpu", "cpu"]))
many = st.lists(some_evidence, max_size=20)


def sums(added: list[Evidence]) -> EvidenceSums:
    out = EvidenceSums(LARGEST)
    for one in added:
        out.add(one)
    return out


@given(many, many)
def test_removing_outcomes_is_the_exact_inverse_of_adding_them(kept, removed):
    found = sums(kept + removed)

    for one in removed:
        found.remove(one)

    assert found == sums(kept)


@given(many, st.randoms())
def test_the_order_of_outcomes_has_no_effect(added, random):
    shuffled = random.sample(added, len(added))

    assert sums(shuffled) == sums(added)


def test_repeated_runs_are_in_one_cell_with_their_mean():
    found = sums([evidence("a", 0.1), evidence("a", 0.3), evidence("b", 0.5)])

    assert len(found) == 2
    cell = found.cells["gpu", "a"]
    assert cell.runs == 2
    assert cell.mean == pytest.approx(0.2)


def test_an_error_counts_as_at_most_the_largest():
    found = sums([evidence("a", 4.0)])

    assert found.cells["gpu", "a"].mean == pytest.approx(LARGEST)


@pytest.mark.parametrize("error", [math.nan, math.inf, -math.inf, math.log(1000), -math.log(1000)])
def test_an_implausible_error_changes_nothing(error):
    found = EvidenceSums(LARGEST)

    assert not found.add(evidence("a", error))
    found.remove(evidence("a", error))

    assert not found


def test_removing_what_was_not_added_is_an_error():
    with pytest.raises(KeyError):
        EvidenceSums(LARGEST).remove(evidence("a", 0.1))
