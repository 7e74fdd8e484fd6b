"""Options of commands that connect to a prediction server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.serving.client.credentials import read_credentials
from presage.system.text.address import check_address

if TYPE_CHECKING:
    from presage.serving.client.client import PresageClient
    from presage.serving.client.credentials import Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Address of a prediction server, and credentials for it."""

    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of a prediction server.")
    ] = ""
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="File with the token for the server."),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="PEM",
            help="Certificate authority of the server. The connection is then encrypted.",
        ),
    ] = None

    def credentials(self) -> Credentials:
        """Read the token and the certificate authority."""
        return read_credentials(self.token_file, self.ca)

    @contextmanager
    def connected(self) -> Iterator[PresageClient]:
        """Yield a client of the server.

        Raises
        ------
        ConfigError
            The address is not HOST:PORT, or a file cannot be read.
        """
        from presage.serving.client.client import PresageClient

        named = f"--server {self.server!r}"
        check_address(
            self.server, named, f"{named} is not HOST:PORT; write it like 127.0.0.1:50051"
        )
        with PresageClient(self.server, credentials=self.credentials()) as client:
            yield client
