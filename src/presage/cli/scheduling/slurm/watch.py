"""``presage slurm watch``."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.slurm.options import (
    STATE,
    Lead,
    ServiceOptions,
    State,
    prepare_state,
)
from presage.system.text.terminal import say

_Report = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Prediction server to report the outcomes of jobs to."),
]
# slurmctld checks limits for the first time 30 s after its start.
_Poll = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.1, max=20, help="Time between two passes.")
]


@command(
    examples="""
    presage slurm watch --report presage:50051 --token-file /etc/presage/token
    """
)
def watch(
    service: ServiceOptions,
    report: _Report = None,
    state: State = STATE,
    lead: Lead = 10,
    poll: _Poll = 15,
) -> None:
    """Extend the time limits of running jobs up to their users' own, and report outcomes.

    Run it as SlurmUser on the host of slurmctld. Runs until SIGTERM or Ctrl-C.
    """
    from presage.cli.scheduling.kubernetes.options import until_signal
    from presage.schedulers.live.agent.outcome_outbox import Outbox
    from presage.schedulers.live.forecast_source import make_service_client
    from presage.schedulers.slurm.watch.slurm_job import Slurm, cluster_name
    from presage.schedulers.slurm.watch.watcher import Watcher
    from presage.serving.server.log import log_as_json

    folder = prepare_state(state)
    outbox = None
    if report is not None:
        outbox = Outbox(folder, make_service_client(report, "--report", service.credentials()))
    log_as_json()
    stopping = until_signal()
    watcher = Watcher(Slurm(), folder, outbox, cluster=cluster_name(), lead_minutes=lead)
    say("watching jobs", err=True)
    watcher.run(stopping, poll)
