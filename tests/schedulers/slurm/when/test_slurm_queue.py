"""Output of squeue and sinfo, as Slurm 22.05 prints it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.when.slurm_queue import (
    JOB_WIDTHS,
    NODE_WIDTHS,
    parse_gres,
    parse_nodes,
    parse_queue,
)

NOTE = JobNote(own_minutes=600, set_minutes=60, predicted_s=1500, median_s=900, features="d" * 64)


def job_line(comment: str = "(null)", **changes: str) -> str:
    cells = {
        "JobID": "2", "ArrayJobID": "2", "ArrayTaskID": "N/A", "HetJobID": "N/A",
        "State": "PENDING",
        "Reason": "Resources", "PriorityLong": "4294901758", "Partition": "main", "NumNodes": "2",
        "NumTasks": "3", "TimeLimit": "1-02:00:00", "TimeUsed": "0:00", "SubmitTime": "1795779677",
        "EligibleTime": "1795779678", "StartTime": "N/A", "EndTime": "N/A",
        "tres-per-job": "gres:gpu:6", "tres-per-node": "N/A", "tres-per-socket": "N/A",
        "tres-per-task": "N/A", "NodeList": "",
    } | {name.replace("_", "-"): text for name, text in changes.items()}  # fmt: skip
    return "".join(f"{cells[name]:{width}}" for name, width in JOB_WIDTHS.items()) + comment


def node_line(name: str = "n1", partition: str = "main*", **changes: str) -> str:
    cells = {
        "NodeList": name, "PartitionName": partition, "Gres": "gpu:a100:4,shard:a100:40",
        "StateComplete": "mixed",
    } | changes  # fmt: skip
    return "".join(f"{cells[name]:{width}}" for name, width in NODE_WIDTHS.items())


def parsed(line: str):
    (job,) = parse_queue(line)
    return job


def test_a_line_of_squeue_is_a_job():
    job = parsed(job_line())
    assert (job.name, job.state, job.priority, job.partitions) == (
        "2", "PENDING", 4294901758, ("main",),
    )  # fmt: skip
    assert (job.gpus, job.gpu_type, job.nodes, job.limit_s) == (6, "", 2, 93_600.0)
    assert (job.eligible_unix_s, job.started_unix_s, job.note) == (1795779678, 0, None)


@pytest.mark.parametrize(
    ("columns", "gpus", "gpu_type"),
    [
        ({"tres_per_job": "gres:gpu:a100:6"}, 6, "a100"),
        ({"tres_per_job": "N/A", "tres_per_node": "gres:gpu:a100:2"}, 4, "a100"),
        ({"tres_per_job": "N/A", "tres_per_node": "gres:gpu"}, 2, ""),
        ({"tres_per_job": "N/A", "tres_per_task": "gres/gpu:1"}, 3, ""),  # newer versions
        ({"tres_per_job": "gres:gpu=5,gres:nvme:1"}, 5, ""),
        ({"tres_per_job": "N/A"}, 0, ""),
        ({"tres_per_job": "gres:gpu:a100:1,gres:gpu:v100:1"}, None, "a100"),
        ({"tres_per_job": "gres:gpu:4", "tres_per_node": "gres:gpu:2"}, 4, ""),
        ({"tres_per_job": "gres:gpu:4", "tres_per_node": "gres:gpu:a100:2"}, 4, "a100"),
        ({"tres_per_job": "gres:gpu:1g.10gb:2"}, 2, "1g.10gb"),
        ({"tres_per_job": "gres:gpu:a100_3g.20gb:1"}, 1, "a100_3g.20gb"),
        ({"tres_per_socket": "gres:gpu:1"}, None, ""),
    ],
)
def test_requests_of_gpus_count_those_of_the_whole_job(columns, gpus, gpu_type):
    job = parsed(job_line(**columns))
    assert job.gpus == gpus
    assert gpus is None or job.gpu_type == gpu_type


def test_shards_tasks_of_arrays_and_several_partitions_are_read():
    job = parsed(
        job_line(
            tres_per_job="N/A", tres_per_node="gres:shard:3", NumNodes="1", JobID="9",
            ArrayJobID="4", ArrayTaskID="3", Partition="main,small",
        )
    )  # fmt: skip
    assert (job.shards, job.gpus, job.name) == (3, 0, "4_3")
    assert job.partitions == ("main", "small")


def test_the_users_own_limit_counts_while_the_bridge_has_set_another():
    of_note = parsed(job_line(NOTE.text(), TimeLimit="1:00:00"))
    assert (of_note.limit_s, of_note.own_limit_s) == (3600.0, 36_000.0)
    changed = parsed(job_line(NOTE.text(), TimeLimit="2:00:00"))  # by its user, meanwhile
    assert changed.own_limit_s == 7200.0
    unlimited = replace(NOTE, own_minutes=None)
    assert parsed(job_line(unlimited.text(), TimeLimit="1:00:00")).own_limit_s == math.inf
    assert parsed(job_line(TimeLimit="UNLIMITED")).own_limit_s == math.inf


@pytest.mark.parametrize(
    "line",
    [
        "", "x", job_line(NumNodes="many"), job_line(TimeLimit="soon"), job_line(NodeList="n[1-"),
        job_line()[:100],
    ],
)  # fmt: skip
def test_lines_of_other_forms_are_left_out(line):
    assert not list(parse_queue(line))


@given(st.text(max_size=300))
def test_no_text_breaks_the_parsers(text):
    list(parse_queue(text))
    list(parse_nodes(text))
    list(parse_gres(text))


def test_parts_of_heterogeneous_jobs_are_marked():
    assert parsed(job_line(HetJobID="2")).is_heterogeneous
    assert not parsed(job_line()).is_heterogeneous


def test_a_running_job_of_a_fast_clock_is_not_left_out():
    job = parsed(job_line(State="RUNNING", TimeUsed="INVALID"))  # it started in squeue's future
    assert job.used_s == 0


def test_a_comment_of_a_user_is_no_note():
    line = job_line("x" * 40 + "presage: limit=1")
    assert parsed(line).note is None


def test_nodes_have_their_partitions_gpus_and_state():
    small = node_line(partition="small")
    (node,) = parse_nodes("\n".join([node_line(), small]))
    assert (node.name, set(node.partitions)) == ("n1", {"main", "small"})
    assert (node.gpus, node.shards, node.is_available) == ({"a100": 4}, 40, True)


@pytest.mark.parametrize(
    ("state", "is_available"),
    [
        ("idle+planned", True), ("allocated", True), ("idle~", True), ("mixed+drain", False),
        ("down*", False), ("idle+maintenance", False), ("idle+drain", False),
        ("down+not_responding", False), ("reserved", False), ("idle+cloud+powered_down", True),
    ],
)  # fmt: skip
def test_jobs_start_on_nodes_that_are_neither_down_nor_drained(state, is_available):
    (node,) = parse_nodes(node_line(StateComplete=state))
    assert node.is_available is is_available


def test_gpus_of_several_types_and_of_none():
    (node,) = parse_nodes(node_line(Gres="gpu:a100:2(S:0-1),gpu:v100:1,nvme:3"))
    assert node.gpus == {"a100": 2, "v100": 1}
    (node,) = parse_nodes(node_line(Gres="gpu:1g.10gb:7,gpu:3g.40gb:2(S:0)"))
    assert node.gpus == {"1g.10gb": 7, "3g.40gb": 2}
    (node,) = parse_nodes(node_line(Gres="gpu:2"))
    assert node.gpus == {"": 2}
    (node,) = parse_nodes(node_line(Gres="(null)"))
    assert node.gpus == {}
