"""Controller of the pure-Python aggregator: which jobs it admits, and from which epoch on."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable

from presage.collectives.core import switch
from presage.collectives.core.messages import Admission, Admitted
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.protocol import (
    MAX_ADMITTED,
    MAX_NUMBER,
    Code,
    Header,
    Kind,
    ProtocolError,
    frame,
    unpack_floors,
)
from presage.collectives.switch.pure_python.connection import Connection
from presage.collectives.switch.pure_python.job import Job


class Admissions:
    """Admission in force, by the state machine of :mod:`presage.collectives.core.switch`.

    Parameters
    ----------
    token : bytes
        SHA-256 of the token of the switch.
    jobs : iterable of Job
        Jobs of the aggregator, iterated at each admission.

    Attributes
    ----------
    floors : dict of str to int
        Admitted jobs, each with the oldest accepted epoch.
    """

    def __init__(self, options: SwitchOptions, token: bytes, jobs: Iterable[Job]) -> None:
        self._is_controlled, self._max_jobs = options.controlled, options.max_jobs
        self._token, self._jobs = token, jobs
        self._state = switch.SwitchState(options.slots, options.incarnation or time.time_ns())
        self._in_force: Admission | None = None
        self.floors: dict[str, int] = {}

    def as_json(self) -> dict[str, object]:
        """Return the state that statistics report."""
        return {
            "controlled": self._is_controlled,
            "incarnation": self._state.incarnation,
            "admission": self._state.token,
            "floors": self.floors,
        }

    def refusal(self, job: str) -> tuple[Code, str] | None:
        """Return why no AllReduce of a job may begin, or None."""
        if not self._is_controlled or job in self.floors:
            return None
        return Code.NOT_ADMITTED, f"the controller does not admit job {job}"

    def greet(self, connection: Connection, header: Header, payload: bytes) -> None:
        """Answer GREET. Begin a new life if the controller knows a higher incarnation.

        Raises
        ------
        ProtocolError
            The known incarnation is out of range.
        """
        if not hmac.compare_digest(payload, self._token):
            connection.end(Code.BAD_TOKEN, "the token is not the switch's")
        elif not self._is_controlled:
            reason = "the switch was started without a controller"
            connection.end(Code.NOT_CONTROLLED, reason)
        elif header.epoch >= MAX_NUMBER:
            raise ProtocolError("the known incarnation is out of range")
        else:
            if header.epoch > self._state.incarnation:
                state = switch.SwitchState(self._state.slots, header.epoch + 1)
                self._put_in_force(state, None)
            connection.admission_bytes = self._max_jobs * MAX_ADMITTED
            self._answer(connection, Kind.STARTED)

    def admit(self, connection: Connection, header: Header, payload: bytes) -> None:
        """Put an ADMISSION in force, or refuse it because it is outdated.

        Raises
        ------
        ProtocolError
            It is malformed or has more jobs than the switch.
        """
        floors = unpack_floors(payload)
        if len(floors) > self._max_jobs:
            raise ProtocolError("ADMISSION has more jobs than the switch")
        if header.number > MAX_NUMBER:
            raise ProtocolError("the token is above 2**63 - 1")
        message = Admission(header.epoch, header.number, floors)
        state, answers = switch.receive(self._state, message)
        is_current = Admitted(message.incarnation, message.token) in answers
        is_same_token = self._in_force and self._in_force.token == message.token
        if message.incarnation != self._state.incarnation:
            connection.refuse(
                Code.OLD_ADMISSION, "the admission is for another start of the switch"
            )
        elif not is_current:
            connection.refuse(Code.OLD_ADMISSION, "a newer admission is in force")
        elif is_same_token and message != self._in_force:
            connection.refuse(Code.OLD_ADMISSION, "another admission with this token is in force")
        else:
            self._put_in_force(state, message)
            self._answer(connection, Kind.ADMITTED)

    def _put_in_force(self, state: switch.SwitchState, message: Admission | None) -> None:
        self._state, self._in_force, self.floors = state, message, dict(state.floors)
        for job in self._jobs:
            self._evict(job)

    def _evict(self, job: Job) -> None:
        """Refuse the AllReduce of a job under way if the admission in force excludes it."""
        running = job.running
        if running is None:
            return
        floor = self.floors.get(job.name, 0)
        if refusal := self.refusal(job.name):
            job.settle(running.number, *refusal)
        elif running.epoch < floor:
            reason = f"epoch {running.epoch} is below {floor}"
            job.settle(running.number, Code.OLD_EPOCH, reason)

    def _answer(self, connection: Connection, kind: Kind) -> None:
        header = Header(kind, number=self._state.token, epoch=self._state.incarnation)
        connection.send(frame(header))
