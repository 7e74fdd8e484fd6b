"""``presage elastic status``."""

from __future__ import annotations

from typing import Any

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.training.elastic.options import JobName, StateFolder, state_folder
from presage.system.text.terminal import Table, print_table, say


@command(
    examples="""
    presage elastic status digits
    presage elastic status digits --json
    """
)
def status(job: JobName, state: StateFolder = None, as_json: Json = False) -> None:
    """Show the workers and the progress of a running job."""
    from presage.cli.output.json_output import print_json
    from presage.training.job_folder import JobFolder
    from presage.training.local_job import request

    row = request(JobFolder(state_folder(state), job), {"op": "status"})
    del row["op"]
    if as_json:
        print_json(row)
        return
    progress = row["progress"]
    say(
        f"job {job!r} is {row['state']}, generation {row['generation']}: {row['size']} of "
        f"{row['desired']} workers, step {progress['step']}, epoch {progress['epoch']}"
    )
    if row["reason"]:
        say(row["reason"])
    print_table(_worker_table(row["workers"]))


def _worker_table(workers: list[dict[str, Any]]) -> Table:
    table = Table()
    for heading in ("worker", "state", "phase"):
        table.add_column(heading)
    for worker in workers:
        table.add_row(worker["id"], worker["state"], worker["phase"])
    return table
