"""Sizes and nodes of jobs as text."""

from __future__ import annotations

import pytest

from presage.schedulers.live.client.elastic_text import (
    is_elastic,
    nodes_text,
    size_text,
    usage_per_device,
)
from presage.schedulers.live.client.event_text import event_name
from presage.schedulers.v1 import cluster_pb2 as pb
from tests.schedulers.live.ui.stand_in import elastic, running

THREE = [("n0", 0), ("n1", 0), ("n0", 1)]


def test_the_size_of_an_elastic_job_is_within_its_range():
    assert size_text(elastic("job", THREE)) == "3 of 1-4"
    assert size_text(elastic("job", [], phase=pb.WAITING)) == "1-4"
    assert size_text(running("job", devices=(0, 1))) == "2"
    assert size_text(pb.JobStatus(job=pb.Job(job_id="job"))) == "1"


def test_nodes_are_named_once_with_their_number_of_workers():
    assert nodes_text(elastic("job", THREE)) == "n0 x2, n1"
    assert nodes_text(running("job", "n7", (0, 1))) == "n7"


def test_workers_that_leave_do_not_count_unless_the_whole_job_leaves():
    members = [("n0", 0), ("n1", 0, "leaving")]
    row = elastic("job", members)
    assert (size_text(row), nodes_text(row)) == ("1 of 1-4", "n0")
    row = elastic("job", members, phase=pb.LEAVING)
    assert (size_text(row), nodes_text(row)) == ("2 of 1-4", "n0, n1")


def test_the_usage_of_an_elastic_job_is_the_mean_of_its_workers():
    assert usage_per_device(elastic("job", THREE, usage_milli=2400.0)) == pytest.approx(800)
    assert usage_per_device(running("job", devices=(0, 1), usage_milli=800.0)) == 800


@pytest.mark.parametrize(
    ("fewest", "most", "expected"), [(0, 0, False), (2, 2, False), (1, 0, True), (0, 4, True)]
)
def test_a_job_is_elastic_if_its_range_has_several_sizes(fewest, most, expected):
    assert is_elastic(pb.Job(gpus=2, min_gpus=fewest, max_gpus=most)) == expected


def test_events_are_named_in_words():
    names = {"Resized": "resized", "MemberEnded": "worker ended", "NodeJoined": "node joined"}
    assert {name: event_name(name) for name in names} == names
