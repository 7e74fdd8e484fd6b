"""Connection to the arbiter with what is reported through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from presage.collectives.core.messages import Member
from presage.collectives.core.view import JobView
from presage.collectives.torch.settings import Settings


@dataclass
class ArbiterLink:
    """Connection to the arbiter, and the estimator of the job's phases.

    Attributes
    ----------
    connection : RankConnection
        Connection with a thread of its own; no method blocks.
    estimator : PhaseEstimator
        Estimator that sees each AllReduce.
    on_view : callable or None
        Called with each view that comes into use.
    """

    connection: Any
    estimator: Any
    on_view: Callable[[JobView], None] | None = None

    def report(self, *, started: int, now_s: float) -> None:
        """Hand the predicted phases to the connection."""
        self.connection.report(self.estimator.estimate(), started=started, now_s=now_s)

    def close(self) -> None:
        """End the connection."""
        self.connection.close()


def open_arbiter_link(settings: Settings, member: Member) -> ArbiterLink:
    """Return a connection to the arbiter of the settings; it connects in the background."""
    from presage.collectives.arbiter.rank_connection import RankConnection, Registration
    from presage.collectives.phases.estimator import PhaseEstimator

    registration = Registration(
        job=member.job,
        rank=member.rank,
        ranks=member.size,
        token=settings.job_token,
        node=settings.node,
    )
    connection = RankConnection(settings.arbiter, registration, token=settings.token)
    return ArbiterLink(connection, PhaseEstimator())
