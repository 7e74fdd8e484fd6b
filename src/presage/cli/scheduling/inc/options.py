"""Options of commands that connect to an arbiter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.system.text.address import check_address

if TYPE_CHECKING:
    from presage.collectives.arbiter.client import ArbiterClient

HOST, PORT = "127.0.0.1", 7300
HERE = f"{HOST}:{PORT}"
_PANEL = "Connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArbiterConnection:
    """Address of an arbiter, and credentials for it."""

    arbiter: Annotated[
        str,
        typer.Option(
            "--arbiter",
            envvar="PRESAGE_INC_ARBITER",
            metavar="HOST:PORT",
            help="Address of the arbiter.",
            rich_help_panel=_PANEL,
        ),
    ] = HERE
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the token for the arbiter.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="PEM",
            help="Certificate authority of the arbiter. The connection is then encrypted.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(
            "--cert",
            metavar="PEM",
            help="Client certificate, for an arbiter that requires one.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="PEM",
            help="Private key of --cert.",
            rich_help_panel=_PANEL,
        ),
    ] = None

    @contextmanager
    def connected(self) -> Iterator[ArbiterClient]:
        """Yield a client of the arbiter.

        Raises
        ------
        ConfigError
            The address is not HOST:PORT, or a file cannot be read.
        """
        from presage.collectives.arbiter.client import ArbiterClient
        from presage.serving.client.credentials import read_credentials

        named = f"--arbiter (or PRESAGE_INC_ARBITER) {self.arbiter!r}"
        check_address(self.arbiter, named, f"{named} is not HOST:PORT; write it like {HERE}")
        credentials = read_credentials(self.token_file, self.ca, self.cert, self.key)
        with ArbiterClient(self.arbiter, credentials=credentials) as client:
            yield client
