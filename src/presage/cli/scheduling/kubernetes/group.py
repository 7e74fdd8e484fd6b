"""``presage kubernetes``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.kubernetes.extender import extender
from presage.cli.scheduling.kubernetes.gangs import gangs
from presage.cli.scheduling.kubernetes.gate import gate
from presage.cli.scheduling.kubernetes.when import when

app = group(
    "Add gang scheduling and GPU sharing by forecasts to a Kubernetes cluster.",
    examples="""
    presage kubernetes gate --predictor presage:50051
    presage kubernetes gangs
    """,
)
for _function in (gate, extender, gangs, when):
    add_command(app, _function)
