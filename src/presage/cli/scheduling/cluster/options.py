"""Options of commands that ask a live cluster's controller, and what they are shown with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.system.address import check_address

if TYPE_CHECKING:
    from presage.schedulers.live.client.client import ClusterClient

HERE = "127.0.0.1:50061"
Controller = Annotated[
    str,
    typer.Option(
        "--controller", envvar="PRESAGE_CLUSTER", metavar="HOST:PORT", help="The controller."
    ),
]
Token = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="PRESAGE_CLUSTER_TOKEN_FILE",
        metavar="FILE",
        help="With the token that is shown to it.",
    ),
]
Authority = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        envvar="PRESAGE_CLUSTER_CA",
        metavar="PEM",
        help="Who vouches for it: then encrypted.",
    ),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--cert",
        envvar="PRESAGE_CLUSTER_CERT",
        metavar="PEM",
        help="One's own, where it asks for one.",
    ),
]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key", envvar="PRESAGE_CLUSTER_KEY", metavar="PEM", help="The certificate's key."
    ),
]


@contextmanager
def connected(
    target: str, token_file: Path | None, ca: Path | None, cert: Path | None, key: Path | None
) -> Iterator[ClusterClient]:
    """A client of a controller.

    Raises
    ------
    ConfigError
        As :func:`check_controller` and ``read_credentials`` do.
    """
    from presage.schedulers.live.client.client import ClusterClient
    from presage.serving.client.credentials import read_credentials

    check_controller(target)
    with ClusterClient(target, credentials=read_credentials(token_file, ca, cert, key)) as client:
        yield client


def check_controller(target: str) -> None:
    """It can be a controller's address.

    Raises
    ------
    ConfigError
        It is no HOST:PORT.
    """
    named = f"--controller (or PRESAGE_CLUSTER) {target!r}"
    check_address(target, named, f"{named} is no HOST:PORT; write it like {HERE}")
