"""Errors of an AllReduce through a switch: after each, the buffer is as it was before."""

from __future__ import annotations

from presage.collectives.switch.protocol import Code
from presage.errors import PresageError


class SwitchError(PresageError):
    """An AllReduce was not completed by the switch.

    Attributes
    ----------
    may_be_complete : bool
        Whether the AllReduce can have completed on other ranks. If False, no rank has or gets the
        sum, so that all ranks run the same number by another algorithm. If True, a rank that has
        the sum keeps it in ``SwitchClient.completed``.
    """

    def __init__(self, message: str, *, may_be_complete: bool = False) -> None:
        super().__init__(message)
        self.may_be_complete = may_be_complete


class RefusedError(SwitchError):
    """The switch refused the AllReduce or the registration, for all ranks of the job.

    Attributes
    ----------
    code : Code
        Reason, for programs.
    """

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class NoSlotError(RefusedError):
    """Other jobs use all slots of the switch."""


class OldEpochError(RefusedError):
    """The epoch is below the highest one of the job, or below the fence of the switch."""


class UnequalRanksError(RefusedError):
    """Ranks of the job have different sizes, numbers, epochs or numbers of ranks."""


class RankLostError(RefusedError):
    """Another rank of the job is not registered, ended, was silent or cancelled the AllReduce."""


class NotAdmittedError(RefusedError):
    """The controller has not admitted the job since the switch started, or excludes it now."""


class OldAdmissionError(RefusedError):
    """The admission is older than that in force, or meant for another start of the switch."""


class NotControlledError(RefusedError):
    """The switch was started without the option to be controlled."""


class SwitchLostError(SwitchError):
    """The switch cannot be reached, ended, or made no progress within the time-out."""


class ClientClosedError(SwitchError):
    """The client was closed, maybe by another thread during an AllReduce."""


_CLASSES: dict[Code, type[RefusedError]] = {
    Code.NO_SLOT: NoSlotError,
    Code.OLD_EPOCH: OldEpochError,
    Code.UNEQUAL: UnequalRanksError,
    Code.RANK_LOST: RankLostError,
    Code.CANCELLED: RankLostError,
    Code.NOT_ADMITTED: NotAdmittedError,
    Code.OLD_ADMISSION: OldAdmissionError,
    Code.NOT_CONTROLLED: NotControlledError,
}


def refused(code: int, reason: str) -> RefusedError:
    """Return the error for a code that the switch sent; unknown codes are malformed requests."""
    known = Code(code) if code in set(Code) else Code.BAD_REQUEST
    return _CLASSES.get(known, RefusedError)(f"the switch refused: {reason}", known)
