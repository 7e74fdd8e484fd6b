"""Agreement of ranks on a view in two phases, as requirement I6 describes it.

The controller locks all ranks, checks that the ranks of each job are at the same AllReduce, then
updates and unlocks them. While a rank is locked it starts no AllReduce. A rank that has
acknowledged cannot decide by itself what became of the round, not even after a time-out. If the
controller is silent, the ranks of a job exchange what they know. Each rank's part is fixed when
it is first sent, and each waits for the parts of all its peers, so all reach the same outcome:

- a peer has applied the update: apply it too;
- a peer knows of the abort, or has never acknowledged: keep the view;
- all have acknowledged and none knows more: keep the view up to the last AllReduce that any of
  them started, and use ring after it. Another job may have been granted the switch already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from presage.collectives.core.messages import (
    Abort,
    Ack,
    Done,
    Member,
    Message,
    Outcome,
    Prepare,
    Status,
    Update,
)
from presage.collectives.core.view import RING_ONLY, JobView

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TwoPhaseAgreement:
    """View and lock of one rank.

    Attributes
    ----------
    view : JobView
        View that decides the next AllReduce.
    locked : int
        Tag of the round that holds the lock; 0 if it is free.
    has_acknowledged : bool
        Whether the rank has acknowledged that round.
    applied : int
        Highest tag whose update was applied.
    aborted : int
        Highest tag that is known to be aborted; its late messages are ignored.
    statuses : frozenset of Status
        Parts that peers sent for the round, once the rank is exchanging them.
    is_exchanging : bool
        Whether the rank has sent its own part; it ignores the controller until the outcome.
    exchanged : frozenset of int
        Tags for which the rank has sent its part to all peers; it sends no second one.
    """

    view: JobView = RING_ONLY
    locked: int = 0
    has_acknowledged: bool = False
    applied: int = 0
    aborted: int = 0
    statuses: frozenset[Status] = frozenset()
    is_exchanging: bool = False
    exchanged: frozenset[int] = frozenset()

    @property
    def can_start(self) -> bool:
        """Whether the next AllReduce may start: not while the rank is locked."""
        return not self.locked

    @property
    def newest_epoch(self) -> int:
        """Epoch of the only view."""
        return self.view.epoch

    def complete(
        self, member: Member, number: int, min_epoch: int
    ) -> tuple[TwoPhaseAgreement, Messages]:
        """Acknowledge a round that waited for the end of an AllReduce on the switch."""
        return self._acknowledge(member, started=number, is_on_switch=False)

    def receive(
        self, member: Member, message: Message, *, started: int, is_on_switch: bool
    ) -> tuple[TwoPhaseAgreement, Messages]:
        """Take part in a round."""
        if isinstance(message, Prepare):
            return self._prepare(member, message.tag, started=started, is_on_switch=is_on_switch)
        if isinstance(message, Update):
            return self._update(member, message)
        if isinstance(message, Abort):
            return self._abort(message.tag), ()
        if isinstance(message, Status):
            return self._receive_status(member, message, started=started)
        return self, ()

    def time_out(self, member: Member, *, started: int) -> tuple[TwoPhaseAgreement, Messages]:
        """Stop waiting for the controller: unlock if nothing was acknowledged, else ask peers."""
        if not self.locked or self.is_exchanging:
            return self, ()
        if not self.has_acknowledged:
            return self._unlock_aborted(), ()
        exchanged = self.exchanged | {self.locked}
        asking = replace(self, is_exchanging=True, exchanged=exchanged)
        own = asking._statuses(member, Outcome.UNCERTAIN, started=started)
        return asking._conclude(member, started, own)

    def _prepare(
        self, member: Member, tag: int, *, started: int, is_on_switch: bool
    ) -> tuple[TwoPhaseAgreement, Messages]:
        if tag <= max(self.aborted, self.applied) or tag < self.locked or self.is_exchanging:
            return self, ()
        if tag == self.locked:
            return replace(self, has_acknowledged=False)._acknowledge(
                member, started=started, is_on_switch=is_on_switch
            )
        # A newer round begins only after the older one was aborted.
        aborted = max(self.aborted, self.locked)
        locked = replace(self, locked=tag, has_acknowledged=False, aborted=aborted)
        return locked._acknowledge(member, started=started, is_on_switch=is_on_switch)

    def _acknowledge(
        self, member: Member, *, started: int, is_on_switch: bool
    ) -> tuple[TwoPhaseAgreement, Messages]:
        """Acknowledge unless one of the rank's AllReduces runs on the switch."""
        if not self.locked or self.has_acknowledged or is_on_switch:
            return self, ()
        ack = Ack(member.job, member.rank, self.locked, started)
        return replace(self, has_acknowledged=True), (ack,)

    def _update(self, member: Member, message: Update) -> tuple[TwoPhaseAgreement, Messages]:
        done = Done(member.job, member.rank, message.tag)
        if message.tag <= max(self.applied, self.aborted):
            return self, (done,)
        if message.tag != self.locked or self.is_exchanging:
            return self, ()
        return self._apply(message.view, message.tag), (done,)

    def _abort(self, tag: int) -> TwoPhaseAgreement:
        if tag == self.locked:
            return self if self.is_exchanging else self._unlock_aborted()
        return replace(self, aborted=max(self.aborted, tag))

    def _receive_status(
        self, member: Member, message: Status, *, started: int
    ) -> tuple[TwoPhaseAgreement, Messages]:
        """Record a peer's part, and send the own one if it has not been sent."""
        if message.tag == self.locked:
            known = replace(self, statuses=self.statuses | {message})
            if self.is_exchanging:
                return known._conclude(member, started, ())
            if self.has_acknowledged:
                return known.time_out(member, started=started)
            unlocked = self._unlock_aborted()
            return unlocked, unlocked._answer(message, Outcome.ABORTED, started=started)
        if message.outcome is not Outcome.UNCERTAIN or message.tag in self.exchanged:
            return self, ()  # settled: this rank has sent its part, or was sent an answer
        if message.tag <= self.applied:
            return self, self._answer(message, Outcome.APPLIED, started=started)
        unlocked = replace(self, aborted=max(self.aborted, message.tag))
        return unlocked, unlocked._answer(message, Outcome.ABORTED, started=started)

    def _answer(self, question: Status, outcome: Outcome, *, started: int) -> Messages:
        view = self.view if outcome is Outcome.APPLIED else None
        return (
            Status(
                question.job,
                question.receiver,
                question.sender,
                question.tag,
                started,
                outcome,
                view,
            ),
        )

    def _statuses(self, member: Member, outcome: Outcome, *, started: int) -> Messages:
        return tuple(
            Status(member.job, member.rank, peer, self.locked, started, outcome, None)
            for peer in member.peers
        )

    def _conclude(
        self, member: Member, started: int, sent: Messages
    ) -> tuple[TwoPhaseAgreement, Messages]:
        """Unlock when the parts of all peers are known."""
        parts = [status for status in self.statuses if status.tag == self.locked]
        if {status.sender for status in parts} != set(member.peers):
            return self, sent
        # The controller may have been ignored meanwhile, and waits for this rank.
        sent = (*sent, Done(member.job, member.rank, self.locked))
        for status in parts:
            if status.view is not None:
                return self._apply(status.view, self.locked), sent
        if any(status.outcome is Outcome.ABORTED for status in parts):
            return self._unlock_aborted(), sent
        last = max([started, *(status.number for status in parts)])
        return replace(self._unlock_aborted(), view=self.view.before(last + 1)), sent

    def _apply(self, view: JobView, tag: int) -> TwoPhaseAgreement:
        # All ranks had acknowledged this round, so none is still in an exchange on an older one.
        exchanged = frozenset(old for old in self.exchanged if old >= tag)
        return TwoPhaseAgreement(view=view, applied=tag, aborted=self.aborted, exchanged=exchanged)

    def _unlock_aborted(self) -> TwoPhaseAgreement:
        aborted = max(self.aborted, self.locked)
        return TwoPhaseAgreement(
            view=self.view, applied=self.applied, aborted=aborted, exchanged=self.exchanged
        )
