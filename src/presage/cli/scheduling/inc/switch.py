"""``presage inc switch``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.system.text.terminal import say

if TYPE_CHECKING:
    from presage.collectives.switch.foreground import Listening
    from presage.collectives.switch.options import SwitchOptions

TOKEN_VARIABLE = "PRESAGE_SWITCH_TOKEN"  # noqa: S105 - the name of a variable
_LIMITS = "Limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Sizes and limits of the switch."""

    chunk_kib: Annotated[
        int,
        typer.Option(min=1, max=1024, help="Size of a chunk, in KiB.", rich_help_panel=_LIMITS),
    ] = 64
    window: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Chunks that a rank may be ahead of its sums. A slot takes chunk size x window x "
            "(ranks + 1) of memory.",
            rich_help_panel=_LIMITS,
        ),
    ] = 16
    max_ranks: Annotated[
        int, typer.Option(min=1, max=1024, help="Most ranks of a job.", rich_help_panel=_LIMITS)
    ] = 64
    max_jobs: Annotated[
        int, typer.Option(min=1, max=4096, help="Most jobs.", rich_help_panel=_LIMITS)
    ] = 256
    lease_s: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=3600,
            help="Seconds without progress after which a rank is lost.",
            rich_help_panel=_LIMITS,
        ),
    ] = 5.0

    def switch_options(
        self, host: str, port: int, slots: int, *, controlled: bool
    ) -> SwitchOptions:
        """Return the options of the switch."""
        from presage.collectives.switch.options import SwitchOptions

        return SwitchOptions(
            host=host,
            port=port,
            slots=slots,
            controlled=controlled,
            chunk_bytes=self.chunk_kib << 10,
            window=self.window,
            max_ranks=self.max_ranks,
            max_jobs=self.max_jobs,
            lease_ms=round(self.lease_s * 1000),
        )


@command(
    examples="""
    presage inc switch --port 7200

    # For an arbiter, and ranks on other machines; PRESAGE_SWITCH_TOKEN is set
    presage inc switch --controlled --host 0.0.0.0 --port 7200
    """
)
def switch(
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free port.")
    ] = 7200,
    slots: Annotated[
        int, typer.Option(min=1, max=256, help="Jobs whose AllReduces are summed at a time.")
    ] = 1,
    controlled: Annotated[
        bool, typer.Option("--controlled", help="Sum only for jobs that an arbiter admits.")
    ] = False,
    aggregator: Annotated[
        Literal["auto", "c", "python"],
        typer.Option(
            metavar="NAME",
            help="c, python, or auto for the compiled one where there is a C compiler.",
        ),
    ] = "auto",
    limits: LimitOptions,
    as_json: Json = False,
) -> None:
    """Sum AllReduces in software, where no switch can compute them.

    Runs until SIGTERM or Ctrl-C. Clients need the token in the environment variable
    PRESAGE_SWITCH_TOKEN, if it is set; without it the switch listens on this machine only.
    """
    from presage.cli.output.json_output import print_json
    from presage.collectives.switch.foreground import run_switch

    options = limits.switch_options(host, port, slots, controlled=controlled)

    def report(found: Listening) -> None:
        print_json(found._asdict()) if as_json else say(_sentence(found), err=True)

    run_switch(options, os.environ.get(TOKEN_VARIABLE, ""), aggregator, report)


def _sentence(found: Listening) -> str:
    reason = f" ({found.reason})" if found.reason else ""
    jobs = "an arbiter admits jobs" if found.is_controlled else "any job may use it"
    return (
        f"summing at {found.host}:{found.port}: {found.aggregator} aggregator{reason}, "
        f"slots: {found.slots}; {jobs}"
    )
