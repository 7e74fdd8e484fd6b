"""Tests of arrays of jobs: indices as users write them, and the jobs of each index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.errors import InvalidJobError
from presage.schedulers.live.protocol.job_array import INDEX, MAX_ARRAY, array_jobs, parse_array
from presage.schedulers.v1 import cluster_pb2 as pb


@pytest.mark.parametrize(
    ("text", "indices", "limit"),
    [
        ("0-3", [0, 1, 2, 3], 0),
        ("5", [5], 0),
        ("0-9%4", list(range(10)), 4),
        ("1,3,5-7", [1, 3, 5, 6, 7], 0),
        ("0-15:4%2", [0, 4, 8, 12], 2),
        ("0-999", list(range(1000)), 0),
    ],
)
def test_indices_are_read(text, indices, limit):
    assert (list(parse_array(text).indices), parse_array(text).limit) == (indices, limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be indices"), ("a-b", "must be indices"), ("0-", "must be indices"),
        ("-1", "must be indices"), ("0-9%0", "must be indices"), ("0-9%", "must be indices"),
        ("0-9%x", "must be indices"), ("0-9%" + "9" * 5_000, "must be indices"),
        ("0-٣", "must be indices"), ("9-0", "has no index"), ("0-9:0", "has no index"),
        ("0-1000", "more than 1,000"), ("0-9999999999", "has no index"),
        ("1,1", "an index is there twice"), ("0-3,2", "an index is there twice"),
    ],
)  # fmt: skip
def test_other_texts_are_refused_in_one_line(text, message):
    with pytest.raises(InvalidJobError, match=message) as error:
        parse_array(text)
    assert "\n" not in str(error.value)


@given(st.text(alphabet="0123456789-,:%x", max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        found = parse_array(text)
    except InvalidJobError:
        return
    assert 0 < len(set(found.indices)) == len(found.indices) <= MAX_ARRAY


def test_each_job_of_an_array_has_a_name_and_its_index_in_the_environment():
    job = pb.Job(job_id="sweep", command=["train"], gpus=2, environment={"A": "b"})
    jobs = array_jobs(job, parse_array("1,4%1"))

    assert [one.job_id for one in jobs] == ["sweep-1", "sweep-4"]
    assert [dict(one.environment) for one in jobs] == [
        {"A": "b", INDEX: "1"}, {"A": "b", INDEX: "4"}
    ]  # fmt: skip
    assert {(one.array, one.array_limit, one.gpus) for one in jobs} == {("sweep", 1, 2)}
    assert INDEX not in job.environment
