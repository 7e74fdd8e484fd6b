"""Agreement of ranks on a view, in-band: its epoch travels with the data of each AllReduce.

Each rank contributes the epoch of its newest view to AllReduce k - 1, and all ranks use the view of
the smallest contributed epoch for k. A rank never waits for the controller, so a controller that
fails at any moment stops no job. The controller sends every view that a job has not adopted yet,
in one message: a rank then has the view of each epoch that the minimum can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from presage.collectives.core.messages import Adopted, Member, Message, ViewUpdate
from presage.collectives.core.view import RING_ONLY, JobView


@dataclass(frozen=True, slots=True)
class InBandAgreement:
    """Views of one rank, from the one in use to the newest one.

    Attributes
    ----------
    views : tuple of JobView
        By ascending epoch; the first one decides the next AllReduce.
    """

    views: tuple[JobView, ...] = (RING_ONLY,)

    @property
    def can_start(self) -> bool:
        """Whether the next AllReduce may start: always."""
        return True

    @property
    def view(self) -> JobView:
        """View that decides the next AllReduce."""
        return self.views[0]

    @property
    def newest_epoch(self) -> int:
        """Epoch that the rank contributes."""
        return self.views[-1].epoch

    def complete(
        self, member: Member, number: int, min_epoch: int
    ) -> tuple[InBandAgreement, tuple[Message, ...]]:
        """Adopt the smallest epoch that the ranks contributed to AllReduce ``number``.

        The rank is idle then, so none of its AllReduces runs by an older view: only now it reports
        the adoption. A view that is missing allows nothing: a later one is never used in its place,
        since other ranks do not use it.
        """
        if min_epoch <= self.view.epoch:
            return self, ()
        views = tuple(view for view in self.views if view.epoch >= min_epoch)
        if not views or views[0].epoch != min_epoch:
            views = (JobView(min_epoch), *views)
        return InBandAgreement(views), (Adopted(member.job, member.rank, min_epoch),)

    def receive(
        self, member: Member, message: Message, *, started: int, is_on_switch: bool
    ) -> tuple[InBandAgreement, tuple[Message, ...]]:
        """Store new views. A repeated message is answered: the report of an adoption was lost."""
        if not isinstance(message, ViewUpdate):
            return self, ()
        newer = tuple(view for view in message.views if view.epoch > self.newest_epoch)
        if newer:
            return InBandAgreement(self.views + newer), ()
        return self, (Adopted(member.job, member.rank, self.view.epoch),)

    def time_out(
        self, member: Member, *, started: int
    ) -> tuple[InBandAgreement, tuple[Message, ...]]:
        """Do nothing: this agreement waits for no message."""
        return self, ()
