"""Rule by which the leader of a local job is started again after it ended before its job."""

from __future__ import annotations

MAX_CRASHES = 3  # in a row after which a leader is started again
STABLE_S = 60.0  # run time after which a crash is the first one of a row
_CRASHED = 1  # exit status of a leader that crashed or could not start


class LeaderRestarts:
    """Counter of the crashes of a leader in a row."""

    def __init__(self) -> None:
        self._crashes = 0

    def reason(self, status: int, ran_s: float) -> str:
        """Return why to start a leader again; "" if it is not.

        Parameters
        ----------
        status : int
            Its exit status; negative if it was killed by a signal.
        ran_s : float
            Time for which it ran.
        """
        if status < 0:
            return "was killed"
        if status != _CRASHED:
            return ""
        self._crashes = 1 if ran_s >= STABLE_S else self._crashes + 1
        return "crashed" if self._crashes <= MAX_CRASHES else ""
