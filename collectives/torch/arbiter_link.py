"""Connection to the arbiter with what is reported through it, away from the path of AllReduces."""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from presage.collectives.core.messages import Member
from presage.collectives.core.view import JobView, Reason
from presage.collectives.phases.prior import Prior
from presage.collectives.table.errors import TableError
from presage.collectives.table.writer import DecisionTable
from presage.collectives.torch.interfaces import ReportingConnection
from presage.collectives.torch.settings import Settings

_LOG = logging.getLogger(__name__)
_MOST_WAITING = 4096


class Started(NamedTuple):
    """AllReduce that has started; ``is_skipped`` if its end is not reported."""

    number: int
    start_s: float
    size_bytes: int
    is_skipped: bool
    is_on_switch: bool


class Ended(NamedTuple):
    """AllReduce that has ended: ``way`` is "inc", "ring", or "refused" if the ring repeated it."""

    number: int
    start_s: float
    duration_s: float
    size_bytes: int
    reason: Reason
    way: str


class ArbiterLink:
    """Connection to the arbiter, estimator of the job's phases, and table of decisions.

    Attributes
    ----------
    ended : deque
        What the path of AllReduces appends to, and ``report`` takes from.
    """

    def __init__(
        self, connection: ReportingConnection, estimator: Any, table: DecisionTable | None
    ) -> None:
        self.connection, self._estimator, self._table = connection, estimator, table
        self._started: deque[Started] = deque(maxlen=_MOST_WAITING)
        self.ended: deque[Ended] = deque(maxlen=_MOST_WAITING)
        self._view = JobView(0)

    def start(self, started: Started) -> None:
        """Note an AllReduce that has started, in the path of AllReduces."""
        self._started.append(started)
        if self._table is not None:
            with suppress(TableError, ValueError):  # closed, maybe in this moment
                self._table.start(started.number + 1)

    def publish(self, view: JobView) -> None:
        """Write a view that has come into use to the table in shared memory."""
        self._view = view
        if self._table is not None:
            with suppress(TableError, ValueError):  # others run by ring then
                self._table.publish(view)

    def set_prior(self, prior: Prior) -> None:
        """Set the forecast that predicts arrivals until they are learnt."""
        if not prior.can_predict:
            _LOG.warning(
                "the forecast of the step time, %g s, is not used: its interval is as wide as an "
                "iteration; arrivals count as soon until they are learnt", prior.step_time_s,
            )  # fmt: skip
        self._estimator.prior = prior

    def report(self, number: int) -> None:
        """Learn from what has started, and hand it and the predictions to the connection.

        Parameters
        ----------
        number : int
            Number of the next AllReduce.
        """
        while self._started:
            one = self._started.popleft()
            self._estimator.observe(
                one.number, one.start_s, one.size_bytes, on_switch=one.is_on_switch
            )
            if one.is_skipped:
                reason = self._view.reason(one.number)
                self.connection.record(
                    _wire(Ended(one.number, one.start_s, 0.0, one.size_bytes, reason, "ring"))
                )
        while self.ended:
            self.connection.record(_wire(self.ended.popleft()))
        phases = self._estimator.estimate()
        self.connection.report(phases, started=number - 1, now_s=time.monotonic())

    def close(self) -> None:
        """End the connection and remove the table."""
        self.connection.close()
        if self._table is not None:
            self._table.close()


def open_arbiter_link(settings: Settings, member: Member) -> ArbiterLink:
    """Return a connection to the arbiter of the settings; it connects in the background."""
    from presage.collectives.arbiter.rank_connection import RankConnection, Registration
    from presage.collectives.phases.estimator import PhaseEstimator
    from presage.serving.client.credentials import Credentials

    registration = Registration(
        job=member.job,
        rank=member.rank,
        ranks=member.size,
        token=settings.job_token,
        node=settings.node,
        agreement=settings.agreement,
    )
    ca, cert, key = (
        Path(file) if file else None for file in (settings.ca, settings.cert, settings.key)
    )
    credentials = Credentials(token=settings.token, ca=ca, certificate=cert, key=key)
    connection = RankConnection(settings.arbiter, registration, credentials=credentials)
    link = ArbiterLink(connection, PhaseEstimator(), _open_table(member))
    if (prior := settings.prior()) is not None:
        link.set_prior(prior)
    return link


def _open_table(member: Member) -> DecisionTable | None:
    try:
        return DecisionTable.create(member.job, member.rank)
    except TableError as error:
        _LOG.warning("decisions are not published: %s", error)
        return None


def _wire(ended: Ended) -> Any:
    from presage.collectives.arbiter.rank_connection import EndedAllReduce
    from presage.collectives.v1 import arbiter_pb2 as pb

    way = {"inc": pb.INC, "ring": pb.RING, "refused": pb.REFUSED}[ended.way]
    return EndedAllReduce(*ended[:-1], way)
