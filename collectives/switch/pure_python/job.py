"""A job at the pure-Python aggregator: its ranks and the AllReduce under way. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.protocol import (
    Code,
    Header,
    Kind,
    ProtocolError,
    chunk_count,
    chunk_size,
)
from presage.collectives.switch.pure_python.counters import Counters
from presage.collectives.switch.pure_python.slots import AllReduce, Slot

_LESS_THAN_ANY = -1


class Outlet(Protocol):
    """Connection of a rank, as its job sees it."""

    def refuse(self, code: Code, reason: str, number: int) -> None:
        """Send the refusal of an AllReduce; drop what is left of its chunks."""

    def wake(self) -> None:
        """Send sums, since there is a new one."""

    def end(self, code: Code, reason: str) -> None:
        """Send the reason why the registration ends, and close the connection."""


@dataclass
class Member:
    """Rank of a job that is registered.

    Attributes
    ----------
    number : int or None
        AllReduce that the rank has begun and whose last sum it does not have.
    values, chunks : int
        Size of that AllReduce.
    received, sent : int
        Chunks received from the rank, and sums sent to it.
    """

    job: Job
    rank: int
    outlet: Outlet
    number: int | None = None
    values: int = 0
    chunks: int = 0
    received: int = 0
    sent: int = 0


class Job:
    """Registered ranks of a job, its AllReduce under way, and its slot while it has one.

    ``settled`` is the highest number that completed or was refused.
    """

    def __init__(
        self, name: str, options: SwitchOptions, slots: list[Slot], counts: Counters
    ) -> None:
        self.name, self.epoch, self.token = name, 0, b""
        self.members: list[Member | None] = []
        self.running: AllReduce | None = None
        self.slot: Slot | None = None
        self.progress_s = 0.0
        self.settled = _LESS_THAN_ANY
        self._why: tuple[Code, str] | None = None  # why ``settled`` was refused
        self._options, self._slots, self._counts = options, slots, counts

    @property
    def is_registered(self) -> bool:
        """Whether any rank is registered."""
        return any(self.members)

    def as_json(self) -> dict[str, object]:
        """Return the state that statistics report."""
        return {
            "name": self.name,
            "ranks": len(self.members),
            "registered": sum(member is not None for member in self.members),
            "epoch": self.epoch,
            "settled": self.settled,
            "running": self.running.number if self.running else -1,
            "has_slot": self.slot is not None,
        }

    def reset(self, ranks: int, token: bytes) -> None:
        """Begin a new life of the job, in which no rank is registered."""
        self.members = [None] * ranks
        self.token, self.settled, self._why = token, _LESS_THAN_ANY, None

    def leave(self, member: Member, reason: str) -> None:
        """Remove a rank whose connection ended; refuse what is under way."""
        self.members[member.rank] = None
        member.number = None
        if self.running:
            self.settle(self.running.number, Code.RANK_LOST, reason)
        self._release()

    def begin(
        self, member: Member, number: int, epoch: int, values: int, fence: int, now_s: float
    ) -> None:
        """Let a rank begin an AllReduce, or refuse it for all ranks.

        Raises
        ------
        ProtocolError
            The rank does not have all sums of its last AllReduce.
        """
        if member.number is not None:
            raise ProtocolError("a rank begins an AllReduce before it has the sums of the last")
        running = self.running
        if epoch < max(self.epoch, fence):
            reason = f"epoch {epoch} is below {max(self.epoch, fence)}"
            self.refuse(member, number, Code.OLD_EPOCH, reason)
        elif number <= self.settled or (running and number < running.number):
            code, reason = Code.OLD_NUMBER, f"number {number} is over"
            if number == self.settled and self._why:
                code, reason = self._why
            member.outlet.refuse(code, reason, number)
        elif running and (running.number, running.epoch, running.values) != (number, epoch, values):
            self._refuse_unequal(member, number, epoch, values, running)
        elif running or self._open(member, number, epoch, values):
            self.epoch, self.progress_s = epoch, now_s
            member.number, member.values = number, values
            member.chunks = chunk_count(values, self._options.chunk_bytes)
            member.received = member.sent = 0

    def cancel(self, member: Member, number: int) -> None:
        """Refuse a number that a rank does not want, unless its last sum was computed."""
        if number > self.settled:
            reason = f"rank {member.rank} cancelled"
            if member.number == number:
                self.settle(number, Code.CANCELLED, reason)
            else:
                self.refuse(member, number, Code.CANCELLED, reason)

    def target(self, member: Member, header: Header) -> memoryview | None:
        """Return the memory for a chunk; None if its AllReduce is over.

        Raises
        ------
        ProtocolError
            The chunk is none that the rank may send now.
        """
        running = self.running
        if not running or not header.number == member.number == running.number:
            if header.number <= self.settled and header.size <= self._options.chunk_bytes:
                return None
            raise ProtocolError(f"chunk of number {header.number}, which the rank has not begun")
        is_next = header.chunk == member.received < member.chunks
        if not is_next or header.chunk >= member.sent + self._options.window:
            raise ProtocolError(f"chunk {header.chunk} is not the next one or exceeds the window")
        size = chunk_size(member.values, header.chunk, self._options.chunk_bytes)
        if header.size != size or header.epoch != running.epoch:
            raise ProtocolError(f"chunk {header.chunk} has another size or epoch than announced")
        assert self.slot
        return self.slot.input(member.rank, header.chunk, size)

    def received(self, member: Member, now_s: float) -> None:
        """Count a chunk of a rank that is complete; add what all ranks have sent."""
        running = self.running
        assert running and self.slot
        member.received += 1
        self.progress_s = now_s
        least = min(m.received if m and m.number == running.number else 0 for m in self.members)
        if least == running.summed:
            return
        while running.summed < least:
            self.slot.add(len(self.members), running.summed)
            running.summed += 1
            self._counts.sums += 1
        if running.summed == running.chunks:
            self.settled, self._why, self.running = running.number, None, None
            self._counts.completed += 1
        for one in self.members:
            if one:
                one.outlet.wake()

    def next_sum(self, member: Member) -> tuple[Header, memoryview] | None:
        """Return the next sum that a rank is to get; None if there is none yet."""
        if member.number is None:
            return None
        running = self.running
        is_running = running is not None and running.number == member.number
        if member.sent >= (running.summed if running and is_running else member.chunks):
            return None
        assert self.slot
        size = chunk_size(member.values, member.sent, self._options.chunk_bytes)
        header = Header(Kind.SUM, size=size, chunk=member.sent, number=member.number)
        return header, self.slot.sum(member.sent, size)

    def sum_sent(self, member: Member, now_s: float) -> None:
        """Count a sum that a rank got; the job's slot is free after the last one of all ranks."""
        member.sent += 1
        self.progress_s = now_s
        if member.sent == member.chunks:
            member.number = None
            self._release()

    def expire(self) -> None:
        """Refuse the AllReduce without progress, and end the registration of its silent ranks."""
        silent = [m for m in self.members if m and self._is_silent(m)]
        if running := self.running:
            names = ", ".join(str(member.rank) for member in silent)
            reason = f"no progress of rank {names} for {self._options.lease_s:g} s"
            self.settle(running.number, Code.RANK_LOST, reason)
        for member in silent:
            member.outlet.end(Code.RANK_LOST, "the rank was silent for the lease")

    def refuse(self, member: Member, number: int, code: Code, reason: str) -> None:
        """Refuse a number of a rank, and with it of all ranks."""
        if number > self.settled and not (self.running and number < self.running.number):
            self.settle(number, code, reason)
        member.outlet.refuse(code, reason, number)

    def settle(self, number: int, code: Code, reason: str) -> None:
        """Refuse numbers up to this one, to all ranks that have begun the running one."""
        running, self.running = self.running, None
        self.settled, self._why = number, (code, reason)
        for member in filter(None, self.members):
            if running and member.number == running.number:
                member.number = None
                member.outlet.refuse(code, reason, running.number)
        self._release()

    def _is_silent(self, member: Member) -> bool:
        """Return whether the others wait for this rank: for its next chunk, or to take its sums."""
        if self.running and member.number == self.running.number:
            return member.received == self.running.summed
        return member.number is not None or self.running is not None

    def _refuse_unequal(
        self, member: Member, number: int, epoch: int, values: int, running: AllReduce
    ) -> None:
        reason = (
            f"rank {member.rank} has number {number}, epoch {epoch}, {values} values; another rank "
            f"has number {running.number}, epoch {running.epoch}, {running.values} values"
        )
        self.refuse(member, number, Code.UNEQUAL, reason)

    def _open(self, member: Member, number: int, epoch: int, values: int) -> bool:
        missing = [rank for rank, one in enumerate(self.members) if not one]
        if missing:
            reason = f"rank {missing[0]} is not registered"
            self.refuse(member, number, Code.RANK_LOST, reason)
            return False
        self.slot = self.slot or next((slot for slot in self._slots if slot.is_free), None)
        if not self.slot:
            reason = f"other jobs use all slots ({len(self._slots)})"
            self.refuse(member, number, Code.NO_SLOT, reason)
            return False
        self.slot.reserve(len(self.members))
        chunks = chunk_count(values, self._options.chunk_bytes)
        self.running = AllReduce(number, epoch, values, chunks)
        return True

    def _release(self) -> None:
        is_idle = not self.running and all(not m or m.number is None for m in self.members)
        if self.slot and is_idle:
            self.slot.is_free, self.slot = True, None
