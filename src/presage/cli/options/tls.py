"""Options of commands that listen with TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.errors import ServiceError

if TYPE_CHECKING:
    from presage.serving.server_options import Tls

PANEL = "Security"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Certificates of a server, and whether it listens on other interfaces than loopback."""

    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote", help="Listen beyond loopback without TLS.", rich_help_panel=PANEL
        ),
    ] = False
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Certificate of the server.", rich_help_panel=PANEL),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Private key of --tls-cert.", rich_help_panel=PANEL),
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Require client certificates signed by this authority.",
            rich_help_panel=PANEL,
        ),
    ] = None

    def tls(self) -> Tls | None:
        """Return the certificates, or None without TLS.

        Raises
        ------
        ServiceError
            An option is given without those that it needs.
        """
        from presage.serving.server_options import Tls

        if (self.tls_cert is None) != (self.tls_key is None):
            raise ServiceError("give both --tls-cert and --tls-key, or neither")
        if self.client_ca is not None and self.tls_cert is None:
            raise ServiceError("--client-ca needs --tls-cert and --tls-key; give them too")
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Tls(self.tls_cert, self.tls_key, self.client_ca)
