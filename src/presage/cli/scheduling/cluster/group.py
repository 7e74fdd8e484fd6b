"""``presage cluster``: its list of commands."""

from __future__ import annotations

from presage.cli.command import add_command, group
from presage.cli.scheduling.cluster.control.cancel import cancel
from presage.cli.scheduling.cluster.control.hold import hold, release
from presage.cli.scheduling.cluster.control.priority import priority
from presage.cli.scheduling.cluster.control.requeue import requeue
from presage.cli.scheduling.cluster.explain import explain
from presage.cli.scheduling.cluster.listing.history import history
from presage.cli.scheduling.cluster.listing.ps import ps
from presage.cli.scheduling.cluster.listing.top import top
from presage.cli.scheduling.cluster.logs import logs
from presage.cli.scheduling.cluster.nodes.drain import drain
from presage.cli.scheduling.cluster.nodes.outages import outages
from presage.cli.scheduling.cluster.processes.agent import agent
from presage.cli.scheduling.cluster.processes.controller import controller
from presage.cli.scheduling.cluster.processes.on_ray import on_ray
from presage.cli.scheduling.cluster.processes.up import up
from presage.cli.scheduling.cluster.quota.group import app as quota_app
from presage.cli.scheduling.cluster.submit import submit
from presage.cli.scheduling.cluster.ui import ui
from presage.cli.scheduling.cluster.wait import wait
from presage.cli.scheduling.cluster.watch import watch
from presage.cli.scheduling.cluster.when.when import when

_RUN, _JOBS, _OBSERVE = "Run a cluster", "Submit and control jobs", "Observe"

app = group(
    "Run a live cluster, whose jobs share devices by forecasts, and submit jobs to it.",
    examples="""
    presage cluster up --agents 2
    presage cluster submit -- python train.py
    presage cluster ps
    """,
)
for _function in (up, controller, agent):
    add_command(app, _function, panel=_RUN)
add_command(app, on_ray, name="on-ray", panel=_RUN)
add_command(app, drain, panel=_RUN)
app.add_typer(quota_app, name="quota", rich_help_panel=_RUN)
add_command(
    app,
    submit,
    panel=_JOBS,
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] [--] COMMAND...",
)
for _function in (wait, cancel, hold, release, requeue):
    add_command(app, _function, panel=_JOBS)
# A negative priority is no option.
add_command(app, priority, panel=_JOBS, context_settings={"ignore_unknown_options": True})
for _function in (ps, top, explain, when, logs, watch, history, outages, ui):
    add_command(app, _function, panel=_OBSERVE)
