"""A live cluster's tables, as a terminal shows them."""

from __future__ import annotations

from typing import Any

import pytest

from presage.cli.scheduling.cluster.listing.job_table import (
    age_text,
    job_table,
    left_text,
    wide_job_table,
)
from presage.cli.scheduling.cluster.listing.node_table import node_table
from presage.cli.scheduling.cluster.listing.top_table import slowdown_of, top_table
from presage.cli.scheduling.cluster.tables import (
    explanation_tables,
    history_table,
    now_table,
    size_table,
    worker_table,
)
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import print_table
from tests.schedulers.live.ui.stand_in import elastic

GIB = 2**30


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


REASON = (
    "no node had room for 30 % and 4,096 MiB of a device: first-of-the-night ends, small-one is "
    "lowered, the-third-one is lowered, 4 more"
)


def running(**fields: Any) -> pb.JobStatus:
    allocation = pb.Allocation(device=0, compute_milli=300, memory_bytes=GIB)
    job = pb.Job(job_id="job", gpus=1)
    status: dict[str, Any] = {
        "phase": pb.RUNNING,
        "node": "a",
        "started_unix_s": 1e9,
        "done": 0.4,
    } | fields
    return pb.JobStatus(job=job, allocations=[allocation], **status)


def printed(table, capsys):
    print_table(table)
    return capsys.readouterr().out


def test_estimated_progress_is_marked_in_tables(capsys):
    for guessed, said in ((True, "~40%"), (False, "40%")):
        row = running(done_estimated=guessed)
        for table in (
            job_table(pb.ListResponse(jobs=[row])),
            now_table(pb.Explanation(status=row)),
        ):
            words = printed(table, capsys).split()
            assert said in words


def test_a_history_fits_a_terminal_without_truncation(capsys):
    event = pb.Event(
        time_unix_s=1e9,
        type="Stopping",
        node="node-00017",
        details=f"100 % of device 0; {REASON}",
    )
    shown = printed(history_table(pb.Explanation(history=[event])), capsys)

    assert max(len(line) for line in shown.splitlines()) <= 100
    cells = [line.split("│")[4] for line in shown.splitlines() if line.startswith("│")]
    assert REASON in " ".join(cell.strip() for cell in cells)


MEMBERS = [("n0", 0), ("n1", 0), ("n0", 1, "joining")]
GROWS = "it grows from 1 to 3, since devices are idle"


def cells(table, capsys, row):
    """Return the cells of a row of a table that has lines."""
    rows = [line for line in printed(table, capsys).splitlines() if line.startswith("│")]
    return [cell.strip() for cell in rows[row].strip("│").split("│")]


def test_an_elastic_job_has_its_nodes_and_size_in_the_table_of_jobs(capsys):
    jobs = [elastic("spirals", MEMBERS, usage_milli=2400.0), elastic("later", [], phase=pb.WAITING)]
    shown = printed(job_table(pb.ListResponse(jobs=jobs, policy="elastic")), capsys).splitlines()

    assert shown[0].strip() == "2 jobs under elastic"
    assert "running  n0 x2, n1  3 of 1-4  100 %   33%" in shown[2]
    assert shown[3].split()[2:4] == ["waiting", "1-4"]


def test_an_explanation_has_the_workers_and_the_sizes_of_an_elastic_job(capsys):
    row = elastic("spirals", MEMBERS, [(0, 1, "it starts"), (5, 3, f"{GROWS}; {REASON}")])
    found = pb.Explanation(status=row)

    assert cells(worker_table(found), capsys, 2) == [
        "m3", "n0", "1", "100 %", "80.0 GiB", "joining"
    ]  # fmt: skip
    size, reason = cells(size_table(found), capsys, 1)[1:]
    assert (size, reason.startswith(GROWS)) == ("3", True)
    assert cells(now_table(found), capsys, 0)[0] == "3 of 1-4"
    assert max(map(len, printed(size_table(found), capsys).splitlines())) <= 100
    titles = [table.title for table in explanation_tables(found)]
    assert titles == ["now", "workers", "devices over time", "forecasts"]


def test_the_history_of_an_elastic_job_has_the_nodes_of_each_size(capsys):
    events = [
        pb.Event(type="Resized", details=f"2 on n0, 1 on n1; {GROWS}", principal="ann"),
        pb.Event(type="MemberEnded", details="worker m2: it left; and more"),
    ]
    row = elastic("spirals", MEMBERS, [(0, 3, GROWS)])
    found = pb.Explanation(status=row, history=events)

    assert cells(history_table(found), capsys, 0)[1:] == ["resized", "", "2 on n0, 1 on n1; by ann"]
    assert cells(history_table(found), capsys, 1)[1:] == [
        "worker ended", "", "worker m2: it left; and more"
    ]  # fmt: skip
    row.ClearField("sizes")  # of a job that is not elastic
    found = pb.Explanation(status=row, history=events)
    assert "it grows from 1 to 3" in printed(history_table(found), capsys)


def test_without_an_elastic_job_the_tables_have_no_column_of_sizes(capsys):
    for table in (
        job_table(pb.ListResponse(jobs=[running()])),
        now_table(pb.Explanation(status=running())),
    ):
        assert "devices" not in printed(table, capsys)


NOW = 1e9 + 3 * 3600 + 20 * 60


def test_the_table_of_jobs_fits_80_columns_and_keeps_states_and_times_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        running(remaining_s=5400.0, submitted_unix_s=1e9, reason=REASON),
        pb.JobStatus(
            job=pb.Job(job_id="resnet-of-a-very-long-name-1f2e3d4c", user="annabelle.lastname"),
            phase=pb.WAITING, queue_position=12, submitted_unix_s=1e9 - 5 * 86400,
        ),
    ]  # fmt: skip
    rows[0].job.user = "bob"
    found = pb.ListResponse(jobs=rows, policy="sharing")
    table = job_table(found, now_unix_s=NOW)
    lines = printed(table, capsys).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["job", "user", "state", "node", "share", "done", "age", "left"]
    assert lines[2].split() == [
        "job", "bob", "running", "a", "30", "%", "40%", "3h20m", "1h30m"
    ]  # fmt: skip
    assert "waiting, no. 12" in lines[3]
    assert "…" in lines[3].split()[0]
    assert lines[3].split()[-2:] == ["5d3h", "-"]

    wrapped = printed(job_table(found, why=True, now_unix_s=NOW), capsys).splitlines()
    assert max(map(len, wrapped)) <= 80

    print_table(wide_job_table(found, now_unix_s=NOW), is_whole=True)
    wide = capsys.readouterr().out.splitlines()
    assert "resnet-of-a-very-long-name-1f2e3d4c  annabelle.lastname  best effort" in wide[3]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-3, "0s"), (0, "0s"), (59.6, "60s"), (119, "119s"), (120, "2m"), (3599, "59m"),
        (3600, "1h"), (12_000, "3h20m"), (36_000, "10h"), (86_400, "1d"), (446_400, "5d4h"),
        (9_000_000, "104d"),
    ],
)  # fmt: skip
def test_a_time_is_shown_in_at_most_two_units(seconds, expected):
    assert age_text(seconds) == expected


def test_the_time_left_is_a_dash_where_it_is_unknown():
    assert left_text(running(remaining_s=90.0)) == "90s"
    assert left_text(running()) == "-"
    assert left_text(running(remaining_s=float("inf"))) == "-"
    assert left_text(running(remaining_s=90.0, phase=pb.FINISHED)) == "-"


def test_nodes_have_a_state_and_a_reason_and_fit_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    devices = [pb.DeviceStatus(kind="h100", free_compute_milli=1000, free_memory_bytes=80 * GIB)]
    failed = pb.DeviceStatus(kind="h100", reason="it failed: Xid 79: GPU has fallen off the bus")
    nodes = [
        pb.NodeStatus(name="n0", devices=[*devices, failed], state="ready"),
        pb.NodeStatus(
            name="n1", devices=devices, state="drained", reason="it is drained by ops: new fan"
        ),
        pb.NodeStatus(name="n2", devices=devices, reason="its agent is silent"),
    ]
    lines = printed(node_table(nodes), capsys).splitlines()
    text = " ".join(" ".join(lines).split())

    assert max(map(len, lines)) <= 80
    assert "device 1: it failed" in " ".join(text.split())
    states = [line.split()[1] for line in lines if line.startswith("n") and line[1] in "012"]
    assert states == ["ready", "drained", "unavailable"]
    assert "drained by" in text


def test_top_has_the_running_jobs_with_their_slowdown_in_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    forecast = pb.Prediction(kind="h100", is_predicted=True, runtime_s=1100.0, setup_s=100.0)
    known = {"predictions": [forecast], "remaining_s": 900.0, "usage_milli": 250.0}
    rows = [
        running(**known, memory_bytes=GIB),
        running(**known, done_estimated=True),
        running(),
        pb.JobStatus(job=pb.Job(job_id="next"), phase=pb.WAITING),
    ]
    rows[0].job.job_id = "a-job-with-a-rather-long-name-0017"
    node = pb.NodeStatus(name="a", devices=[pb.DeviceStatus(kind="h100")])
    found = pb.ListResponse(jobs=rows, nodes=[node], remaining_job_count=4)
    lines = printed(top_table(found), capsys).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[0].strip() == "3 jobs on nodes, 5 waiting"
    assert lines[2].split()[-3:] == ["15m", "1.50", "x"]  # 900 s for 60 % of 1,000 s
    assert [line.split()[-1] for line in lines[3:]] == ["-", "-"]
    assert slowdown_of(rows[0], {"a": ["v100"]}) is None
