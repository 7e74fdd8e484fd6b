"""``presage cluster quota set`` and ``remove``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.scheduling.cluster.options import ConnectionOptions
from presage.errors import ConfigError
from presage.system.text.terminal import say

_User = Annotated[str | None, typer.Argument(metavar="[USER]", help="Name of the user.")]
_Default = Annotated[
    bool, typer.Option("--default", help="The quota of users without one, instead of a user's.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNumbers:
    """Numbers of a quota; None for those that stay as they are."""

    devices: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            show_default="as before",
            help="Devices that the user's jobs may hold at once; 0.5 is half a device.",
        ),
    ] = None
    weight: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            show_default="as before",
            help="Weight for fair share, which divides the user's past use.",
        ),
    ] = None


@command(
    examples="""
    # Let ana hold 4 devices at once, and others 8 each
    presage cluster quota set ana --devices 4
    presage cluster quota set --default --devices 8

    # Fair share: ana may use twice as much as others
    presage cluster quota set ana --weight 2
    """
)
def set_quota(
    connection: ConnectionOptions,
    numbers: QuotaNumbers,
    user: _User = None,
    default: _Default = False,
) -> None:
    """Set the quota of a user, or of all users without one.

    Only administrators may. Jobs that run go on, also if the user holds more than the quota.
    """
    name, devices = _name(user, default=default), numbers.devices
    if devices is None and numbers.weight is None:
        raise ConfigError("no number; give --devices, --weight, or both")
    with connection.connected() as client:
        held = client.set_quota(name, devices=devices, weight=numbers.weight)
    if devices is not None and held > devices:
        say(
            f"{name} holds {held:g} devices, more than {devices:g}: its jobs go on, and no others "
            "start meanwhile",
            err=True,
        )


@command(
    examples="""
    presage cluster quota remove ana
    presage cluster quota remove --default
    """
)
def remove_quota(
    connection: ConnectionOptions, user: _User = None, default: _Default = False
) -> None:
    """Remove the quota of a user, so that the default counts again, or the default itself."""
    with connection.connected() as client:
        client.remove_quota(_name(user, default=default))


def _name(user: str | None, *, default: bool) -> str:
    if (user is None) != default or user == "":
        raise ConfigError("give the name of a user or --default: exactly one of these")
    return user or ""
