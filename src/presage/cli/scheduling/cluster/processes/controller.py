"""``presage cluster controller``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.command import command
from presage.cli.options.tls import PANEL, TlsOptions
from presage.cli.scheduling.cluster.options import HOST, PORT
from presage.cli.scheduling.cluster.processes.options import (
    Lease,
    Policy,
    PredictorOptions,
    policy_named,
)
from presage.cli.scheduling.options import AccessLog, Hazards
from presage.system.files.data_folder import data_folder
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
    from presage.serving.server_options import Options
    from presage.system.notifications.cloud_event import CloudEvent
    from presage.system.notifications.webhook import Webhook

CONTROLLING = "controlling at"  # what a controller prints once it listens
_FLUSH_S = 2.0  # that the end of a controller waits for the delivery of events
_JOURNAL = "Journal"
_FOLDER = "data/cluster of a checkout, else in ~/.local/state/presage/cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """The database of the controller."""

    journal: Annotated[
        str | None,
        typer.Option(
            envvar="PRESAGE_JOURNAL",
            metavar="URL",
            show_default=f"controller.db in {_FOLDER}",
            help="Database: a file, sqlite:///FILE, or postgresql://USER@HOST/DATABASE. The "
            "password is read from PGPASSWORD or ~/.pgpass.",
            rich_help_panel=_JOURNAL,
        ),
    ] = None
    journal_key: Annotated[
        Path | None,
        typer.Option(
            envvar="PRESAGE_JOURNAL_KEY",
            metavar="FILE",
            show_default=f"FILE.key; for PostgreSQL journal.key in {_FOLDER}",
            help="Key that authenticates records and encrypts environments. It is created if it is "
            "missing.",
            rich_help_panel=_JOURNAL,
        ),
    ] = None
    keep_ended: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="JOBS",
            help="Number of finished jobs to keep listed.",
            rich_help_panel=_JOURNAL,
        ),
    ] = 10_000
    leaders: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=f"leaders in {_FOLDER}",
            help="Folder for the files of the leaders of elastic jobs.",
            rich_help_panel=_JOURNAL,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where the controller listens, and what it logs."""

    host: Annotated[str, typer.Option(help="Address to listen on.")] = HOST
    port: Annotated[int, typer.Option(help="Port to listen on; 0 selects a free port.")] = PORT
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="PORT", help="Port for Prometheus metrics."),
    ] = None
    access_log: AccessLog = False
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Require a token from this file (see `presage token`). Without it and "
            "--client-ca, only the user that starts the controller may do more than read.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def server_options(self, tls: TlsOptions) -> Options:
        """Return the options of the gRPC server."""
        from presage.serving.server_options import Options

        return Options(
            host=self.host,
            port=self.port,
            allow_remote=tls.allow_remote,
            tls=tls.tls(),
            tokens=self.tokens,
            access_log=self.access_log,
        )


@command(
    examples="""
    presage cluster controller --predictor 127.0.0.1:50051

    # Avoid failing devices, by a hazard model that was fitted to this cluster
    presage cluster controller --policy expected --hazards data/hazard/hazard.json

    # For agents on other machines
    presage cluster controller --host 0.0.0.0 --tokens tokens \\
      --tls-cert head.pem --tls-key head.key
    """
)
def controller(
    *,
    policy: Policy = "sharing",
    lease_s: Lease = 120.0,
    hazards: Hazards = None,
    predictor: PredictorOptions,
    journal: JournalOptions,
    listen: ListenOptions,
    tls: TlsOptions,
) -> None:
    """Accept jobs and schedule them on the nodes of a live cluster.

    Runs until SIGTERM or Ctrl-C. Jobs keep running without it for as long as their lease.
    Set PRESAGE_WEBHOOK to a URL that receives events of failed nodes.
    """
    import uvloop

    from presage.schedulers.forecasters.outage_hazards import read_outage_hazards
    from presage.schedulers.live.controller.controller import Controller, Leases
    from presage.schedulers.live.controller.journal.journal import Journal
    from presage.schedulers.live.controller.server.controller_server import run_controller
    from presage.schedulers.live.tracing.job_spans import JobSpans
    from presage.serving.server.log import log_as_json
    from presage.serving.server.tracing import configured_provider
    from presage.system.notifications.webhook import configured_webhook

    options = listen.server_options(tls)
    made, (chosen, sharing) = predictor.forecaster(), policy_named(policy)
    failing = read_outage_hazards(hazards)
    webhook, tracing = configured_webhook(), configured_provider("presage-controller")
    log_as_json()
    leases = Leases(lease_s=lease_s, suspect_s=min(15.0, lease_s))
    folder = data_folder() / "cluster"
    path = journal.journal or str(folder / "controller.db")
    leaders = journal.leaders or folder / "leaders"
    with (
        _metrics(options, listen.metrics_port) as (metrics, counted),
        _notifying(webhook, counted) as notify,
    ):

        async def serve() -> None:
            working = Controller(
                opened, chosen, made, leases, hazards=failing, sharing=sharing,
                max_ended_jobs=journal.keep_ended, metrics=counted, notify=notify,
                spans=None if tracing is None else JobSpans(tracing),
            )  # fmt: skip
            history = opened.store.key_file.with_suffix(".history")
            await run_controller(working, options, policy, _say_ready, metrics, leaders, history)

        with Journal.open(path, journal.journal_key) as opened:
            uvloop.run(serve())


@contextmanager
def _metrics(options: Options, port: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield the metrics of requests and, if they are served, those of the cluster."""
    from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
    from presage.serving.server.prometheus_metrics import Metrics, serve_metrics

    metrics = Metrics()
    if port is None:
        yield metrics, None
        return
    counted = ClusterMetrics(metrics.registry)
    stop_metrics = serve_metrics(metrics, options.metrics_host, port)
    try:
        yield metrics, counted
    finally:
        stop_metrics()


@contextmanager
def _notifying(
    webhook: Webhook | None, metrics: ClusterMetrics | None
) -> Iterator[Callable[[CloudEvent], None] | None]:
    """Yield what sends events to the webhook; None without a webhook."""
    from presage.serving.server.log import log
    from presage.system.notifications.event_sender import DELIVERED, EventSender

    if webhook is None:
        yield None
        return

    def note(result: str, event: CloudEvent, problem: str) -> None:
        if metrics is not None:
            metrics.count_event(result)
        if result != DELIVERED:
            log(
                logging.WARNING, f"event {result}", type=event.type, subject=event.subject,
                webhook=webhook.origin, error=problem,
            )  # fmt: skip

    sender = EventSender(webhook, note)
    try:
        yield sender.put
    finally:
        sender.flush(_FLUSH_S)


def _say_ready(target: str) -> None:
    say(f"{CONTROLLING} {target}", err=True)
