"""``presage slurm bridge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.slurm.options import (
    STATE,
    RequestOptions,
    ServiceOptions,
    State,
    load_backend,
    prepare_state,
)
from presage.system.text.terminal import say

_Source = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Source of forecasts: HOST:PORT of a prediction server, or a release folder.",
    ),
]
_Timeout = Annotated[
    int,
    typer.Option(min=1, help="Time limit of an answer in milliseconds; job_submit.lua waits 80."),
]


@command(
    examples="""
    presage slurm bridge --predictor presage:50051 \\
      --token-file /etc/presage/token --device a100=a100-80gb --shards 10
    """
)
def bridge(
    predictor: _Source,
    requests: RequestOptions,
    service: ServiceOptions,
    state: State = STATE,
    timeout: _Timeout = 40,
) -> None:
    """Answer job_submit.lua with the requests of each submitted job, by its forecast.

    Without it jobs are submitted unchanged. If the watcher stops, it gives all jobs their own time
    limits back. Run it as SlurmUser on the host of slurmctld. Runs until SIGTERM or Ctrl-C.
    """
    from presage.cli.scheduling.kubernetes.options import until_signal
    from presage.schedulers.slurm.bridge.bridge_process import run_bridge
    from presage.serving.server.log import log_as_json

    kinds, options = requests.kinds(), requests.decision_options()
    folder: Path = prepare_state(state)
    backend = load_backend(predictor, timeout / 1000, service.credentials())
    log_as_json()
    run_bridge(
        backend,
        folder,
        kinds,
        options,
        timeout_s=timeout / 1000,
        stopping=until_signal(),
        started=lambda path: say(f"answering job_submit.lua at {path}", err=True),
    )
