"""Options of switches with in-network computing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from presage.errors import ConfigError

if TYPE_CHECKING:
    from presage.collectives.simulation.cluster_sharing import ClusterSharing
    from presage.schedulers.core.topology import Topology

_PANEL = "In-network computing"
LATENCY_S = 5e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class IncOptions:
    """Whether gangs use switches that compute, and how they share them."""

    inc: Annotated[
        bool,
        typer.Option(
            "--inc",
            help="Let gangs use the switches of topology.inc in the cluster file, and print what "
            "that changes.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    inc_rule: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="How gangs share a switch: time-saved, as the arbiter decides; first-come; "
            "first-for-life; or own-switch, a slot for each gang.",
            rich_help_panel=_PANEL,
        ),
    ] = "time-saved"
    inc_gbit: Annotated[
        float,
        typer.Option(help="Bandwidth of a node's link in Gbit/s.", rich_help_panel=_PANEL),
    ] = 100.0

    def sharing(self, topology: Topology) -> ClusterSharing | None:
        """Return the sharing of the switches; None without ``--inc``.

        Raises
        ------
        ConfigError
            No switch has slots, the rule is unknown, or the bandwidth is not above 0.
        """
        from presage.collectives.core.costs import Link
        from presage.collectives.simulation.cluster_sharing import ClusterSharing
        from presage.collectives.simulation.compare import RULES
        from presage.system.text.known_names import check_known

        if not self.inc:
            return None
        check_known((self.inc_rule,), RULES, "--inc-rule ")
        if not 0 < self.inc_gbit < math.inf:
            raise ConfigError(f"--inc-gbit {self.inc_gbit:g}, must be a finite number > 0")
        if not any(vertex.inc_slots for vertex in topology.vertices):
            raise ConfigError(
                "--inc needs a switch that computes; add inc: {rack: 1} below topology in the "
                "cluster file, with the level of your switches"
            )
        link = Link(LATENCY_S, self.inc_gbit * 1e9 / 8)
        return ClusterSharing(topology, link, self.inc_rule)
