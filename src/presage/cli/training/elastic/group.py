"""``presage elastic``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.training.elastic.resize import resize
from presage.cli.training.elastic.run import run
from presage.cli.training.elastic.status import status

app = group(
    "Train with a number of workers that changes while the job runs.",
    examples="""
    presage elastic run --workers 2 digits python train.py
    presage elastic resize digits 4
    presage elastic status digits
    """,
)
for _function in (run, resize, status):
    add_command(app, _function)
