"""``presage token``: tokens for the clients of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from presage.cli.command import command
from presage.system.text.terminal import say

_CLUSTER = "Options for tokens of a live cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """Limits of a token."""

    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expiry time, such as 2027-01-31T12:00:00Z.")
    ] = None
    run_as: Annotated[
        str | None,
        typer.Option(
            metavar="ACCOUNT",
            show_default="NAME",
            help="Account that the client's jobs run as.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    node: Annotated[
        str | None,
        typer.Option(
            metavar="NODE",
            help="The only node that may use a token of role agent.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:COUNT",
            help="Devices that the node may report. Repeat for several kinds.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None
    max_jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of unfinished jobs.", rich_help_panel=_CLUSTER),
    ] = None
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum size of these jobs as submitted.", rich_help_panel=_CLUSTER
        ),
    ] = None

    def set_limits(self) -> dict[str, str]:
        """Return the limits that are set, as the token file writes them."""
        limits = {
            "expires": self.expires,
            "run-as": self.run_as,
            "node": self.node,
            "devices": ",".join(quote(text, safe=":") for text in self.device or ()) or None,
            "max-jobs": self.max_jobs,
            "max-bytes": self.max_bytes,
        }
        return {key: str(value) for key, value in limits.items() if value is not None}


@command(
    examples="""
    # A client that may request predictions
    presage token scheduler --file tokens

    # The agent of one node of a live cluster
    presage token node-1 --role agent --node node-1 --device h100:8
    """
)
def token(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the client in logs, quotas and journals."),
    ],
    limits: TokenLimits,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            show_default="predict",
            help="Role of the client. Prediction server: predict, report, admin. Live cluster: "
            "view, submit, agent, admin. Kubernetes extender: bind. Repeat for several roles.",
        ),
    ] = None,
    file: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Token file of the server; a line is appended."),
    ] = Path("tokens"),
) -> None:
    """Create a token for a client of a server, and print it once.

    The token file stores a hash of the token only. A running server reads the file again.
    """
    from presage.serving.authentication.token_file import add_token

    secret = add_token(file, name, role or ["predict"], limits.set_limits())
    say(secret)
    say(f"added {name!r} to {file}; the token above is not stored anywhere", err=True)
