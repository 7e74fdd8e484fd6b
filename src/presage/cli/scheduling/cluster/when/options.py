"""Options of ``presage cluster when``: variants of a request, and the simulated futures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb

WITHIN = ("10m", "1h", "24h")
_VARIANTS = "Variants"
Gpus = Annotated[
    list[int] | None,
    typer.Option(
        min=1,
        help="Number of devices instead of the requested one. Repeat for several variants.",
        rich_help_panel=_VARIANTS,
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Kind of device instead of the requested ones. Repeat for several variants.",
        rich_help_panel=_VARIANTS,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantOptions:
    """Variants of the request of each job; every option is a variant of its own."""

    gpus: Gpus = None
    kinds: Kinds = None
    shares: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            min=0.001,
            max=1.0,
            help="Share of each device instead of the requested one. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Policy instead of the cluster's. Repeat for several variants.",
            rich_help_panel=_VARIANTS,
        ),
    ] = None

    def messages(self) -> Iterator[pb.WhatIfVariant]:
        """Yield the request itself and one variant for each option; nothing without options."""
        from presage.schedulers.v1 import cluster_pb2 as pb

        if self.gpus or self.kinds or self.shares or self.policies:
            yield pb.WhatIfVariant()
        yield from (pb.WhatIfVariant(gpus=number) for number in self.gpus or ())
        yield from (pb.WhatIfVariant(kinds=[kind]) for kind in self.kinds or ())
        for share in self.shares or ():
            yield pb.WhatIfVariant(compute_milli=max(1, round(1000 * share)))
        yield from (pb.WhatIfVariant(policy=policy) for policy in self.policies or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class FutureOptions:
    """Simulated futures, and the times of the printed probabilities."""

    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DURATION",
            show_default="10m, 1h and 24h",
            help="Print the probability of a start within this time. Repeat for several times.",
        ),
    ] = None
    samples: Annotated[int, typer.Option(min=1, max=1000, help="Number of simulated futures.")] = 50
    horizon_days: Annotated[
        float,
        typer.Option(min=0.001, max=366.0, help="Length of a simulated future, in days."),
    ] = 7.0

    @property
    def within_s(self) -> list[float]:
        """Times of the printed probabilities in seconds.

        Raises
        ------
        ConfigError
            ``--within`` is no duration.
        """
        from presage.cli.options.common import seconds_of

        return [seconds_of(one, "--within") for one in self.within or WITHIN]

    @property
    def horizon_s(self) -> float:
        """Length of a simulated future in seconds."""
        return self.horizon_days * 86_400
