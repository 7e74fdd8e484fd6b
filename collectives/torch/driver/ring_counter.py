"""Counter of AllReduces that run by ring and change nothing but the number.

Most AllReduces run by ring and exchange no epochs. They are counted, and the state machine gets
them together, before anything else happens.
"""

from __future__ import annotations

from presage.collectives.core import rank as core_rank
from presage.collectives.core.in_band import InBandAgreement
from presage.collectives.core.rank import Phase
from presage.collectives.core.view import RING_ONLY
from presage.collectives.torch.driver.rank_machine import RankMachine
from presage.collectives.torch.epoch_exchange import EpochExchange

_NEVER = 1 << 62


class RingCounter:
    """Number of the next AllReduce, which can be ahead of the state machine.

    Attributes
    ----------
    number : int
        Number of the next AllReduce to start.
    """

    def __init__(self, machine: RankMachine, exchange: EpochExchange) -> None:
        self.number = 0
        self._machine, self._exchange = machine, exchange
        self._skip_until = 0
        self._planned_view, self._next_allowed = RING_ONLY, -1

    def can_skip(self, mask: int) -> bool:
        """Return whether the next AllReduce runs by ring and changes nothing but the number.

        Parameters
        ----------
        mask : int
            That of its size in ``equal_sizes``.
        """
        number = self.number
        return number < self._skip_until and (number & mask != 0 or not self._exchange.has_epochs)

    def skip(self) -> None:
        """Count an AllReduce that was started by ring."""
        self.number += 1

    def start(self, number: int) -> None:
        """Note the start of an AllReduce by a full step of the machine."""
        self.number, self._skip_until = number + 1, 0

    def plan(self, *, has_epoch: bool) -> None:
        """Set the first number that needs a full step, after the end of an AllReduce.

        The AllReduce after a sum of the switch is a full step: until its ring has ended, a peer
        may need that sum.

        Parameters
        ----------
        has_epoch : bool
            Whether an agreed epoch waits for the end of the next AllReduce.
        """
        state = self._machine.state
        agreement, number = state.agreement, state.number
        is_in_band = isinstance(agreement, InBandAgreement)
        has_epoch = has_epoch or self._exchange.is_under_way
        if has_epoch or state.last_min_epoch is not None or not is_in_band:
            self._skip_until = 0
            return
        view = agreement.view
        if view is not self._planned_view or self._next_allowed < number:  # a search takes time
            allowed = view.next_allowed(number)
            self._planned_view = view
            self._next_allowed = _NEVER if allowed is None else allowed
        self._skip_until = self._next_allowed

    def catch_up(self) -> None:
        """Bring the state machine to the current number; the lock is held."""
        machine = self._machine
        if machine.state.phase is Phase.IDLE and self.number > machine.state.number:
            count = self.number - machine.state.number
            machine.state = core_rank.skip_rings(machine.state, count)
