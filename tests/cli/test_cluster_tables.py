"""A live cluster's tables, as a terminal shows them."""

from __future__ import annotations

from typing import Any

from presage.cli.scheduling.cluster.tables import history_table, job_table, now_table
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.terminal import print_table

GIB = 2**30
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


def test_what_is_done_by_guess_is_said_to_be(capsys):
    for guessed, said in ((True, "~40%"), (False, "40%")):
        row = running(done_estimated=guessed)
        for table in (
            job_table(pb.ListResponse(jobs=[row])),
            now_table(pb.Explanation(status=row)),
        ):
            words = printed(table, capsys).split()
            assert said in words


def test_a_history_fits_a_terminal_and_loses_nothing(capsys):
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
