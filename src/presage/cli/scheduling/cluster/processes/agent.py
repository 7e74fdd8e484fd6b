"""``presage cluster agent``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import check_controller
from presage.cli.scheduling.cluster.processes.agent_options import (
    AgentConnection,
    DeviceOptions,
    JobOptions,
    NodeOptions,
)
from presage.cli.scheduling.cluster.processes.options import PredictorOptions
from presage.schedulers.live.forecast_source import make_service_client

if TYPE_CHECKING:
    from presage.schedulers.live.agent.agent import Agent
    from presage.schedulers.live.agent.outcome_outbox import Outbox
    from presage.serving.client.credentials import Credentials


@command(
    examples="""
    presage cluster agent --node node-1 --controller head:50061 \\
      --token-file node-1.token --predictor head:50051

    # One device per processor, or one GPU
    presage cluster agent --device cpu-1=0 --device cpu-1=1
    presage cluster agent --device h100=gpu0
    """
)
def agent(
    *,
    name: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Name of this node.")
    ] = socket.gethostname(),
    devices: DeviceOptions,
    node: NodeOptions,
    predictor: PredictorOptions,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Prediction server to report the outcomes of jobs to."
        ),
    ] = None,
    jobs: JobOptions,
    connection: AgentConnection,
) -> None:  # fmt: skip
    """Run jobs on this node as the controller schedules them.

    Runs until SIGTERM or Ctrl-C. Jobs keep running without it for as long as their lease.
    """
    from presage.schedulers.live.agent.agent import Agent
    from presage.schedulers.live.tracing.task_spans import TaskSpans
    from presage.serving.server.log import log_as_json
    from presage.serving.server.tracing import configured_provider

    forecaster = predictor.forecaster()
    outbox = _outbox(report, node, predictor)
    options = node.agent_options(name, devices, jobs)
    check_controller(connection.controller)
    connection.credentials()  # errors in the files are reported at once
    tracing = configured_provider("presage-agent")
    spans = None if tracing is None else TaskSpans(tracing, options.node)
    log_as_json()
    local = None if predictor.predictor == "none" else forecaster
    running = Agent(options, local, outbox, spans)
    asyncio.run(_serve(running, connection.controller, connection.credentials))


def _outbox(report: str | None, node: NodeOptions, predictor: PredictorOptions) -> Outbox | None:
    from presage.schedulers.live.agent.outcome_outbox import Outbox

    if report is None:
        return None
    return Outbox(node.folder(), make_service_client(report, "--report", predictor.credentials()))


async def _serve(running: Agent, controller: str, credentials: Callable[[], Credentials]) -> None:
    from presage.schedulers.live.agent.connection.controller_connection import serve_node

    working = asyncio.ensure_future(serve_node(running, controller, credentials))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        return
    finally:
        if running.has_stalled():  # joining its thread would never return
            os._exit(1)
        running.close()
