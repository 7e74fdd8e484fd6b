"""``presage trace``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.traces.convert import convert
from presage.cli.scheduling.traces.generate import generate
from presage.cli.scheduling.traces.show import show

app = group(
    "Inspect, convert and generate traces of jobs.",
    examples="""
    presage trace show examples/trace.csv
    presage trace generate --like examples/trace.csv --jobs 5000 \\
      --output more.csv
    """,
)
for _function in (show, convert, generate):
    add_command(app, _function)
