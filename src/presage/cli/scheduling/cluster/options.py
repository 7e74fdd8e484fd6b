"""Options of commands that connect to a live cluster's controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.system.text.address import check_address

if TYPE_CHECKING:
    from presage.schedulers.live.client.client import ClusterClient
    from presage.serving.client.credentials import Credentials

HOST, PORT = "127.0.0.1", 50061
HERE = f"{HOST}:{PORT}"
PANEL = "Connection"
STATE_FOLDER = "data/cluster in a checkout, else ~/.local/state/presage/cluster"

Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of jobs.")]
AnyJobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB...]", show_default="all jobs", help="Names of jobs."),
]
WaitingJobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB...]", show_default="all waiting jobs", help="Names of jobs."),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of a job.")]
Controller = Annotated[
    str,
    typer.Option(
        "--controller",
        envvar="PRESAGE_CLUSTER",
        metavar="HOST:PORT",
        help="Address of the controller.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Address of the controller, and credentials for it."""

    controller: Controller = HERE
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            envvar="PRESAGE_CLUSTER_TOKEN_FILE",
            metavar="FILE",
            help="File with the token for the controller.",
            rich_help_panel=PANEL,
        ),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            envvar="PRESAGE_CLUSTER_CA",
            metavar="PEM",
            help="Certificate authority of the controller. The connection is then encrypted.",
            rich_help_panel=PANEL,
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            "--cert",
            envvar="PRESAGE_CLUSTER_CERT",
            metavar="PEM",
            help="Client certificate, for a controller that requires one.",
            rich_help_panel=PANEL,
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            envvar="PRESAGE_CLUSTER_KEY",
            metavar="PEM",
            help="Private key of --cert.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def credentials(self) -> Credentials:
        """Read the token and the certificates."""
        from presage.serving.client.credentials import read_credentials

        return read_credentials(self.token_file, self.ca, self.cert, self.key)

    @contextmanager
    def connected(self) -> Iterator[ClusterClient]:
        """Yield a client of the controller.

        Raises
        ------
        ConfigError
            The address is not HOST:PORT, or a file cannot be read.
        """
        with self.client_factory()() as client:
            yield client

    def client_factory(self, **settings: float) -> Callable[[], ClusterClient]:
        """Return a function that makes a client, after a check of the options."""
        from presage.schedulers.live.client.client import ClusterClient

        check_controller(self.controller)
        credentials = self.credentials()
        return lambda: ClusterClient(self.controller, credentials=credentials, **settings)


def check_controller(target: str) -> None:
    """Check the address of a controller.

    Raises
    ------
    ConfigError
        It is not HOST:PORT.
    """
    named = f"--controller (or PRESAGE_CLUSTER) {target!r}"
    check_address(target, named, f"{named} is not HOST:PORT; write it like {HERE}")
