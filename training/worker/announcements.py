"""What the leader of a job has announced to a worker."""

from __future__ import annotations

import threading

from presage.errors import ElasticError
from presage.training.generation import Generation
from presage.training.wire import Message


class SessionOverError(ElasticError):
    """The job is done, or this worker leaves it; the message is "done" or "leave"."""

    @property
    def is_leaving(self) -> bool:
        """Whether this worker leaves a job that goes on, or that is suspended."""
        return str(self) == "leave"


class Announcements:
    """Announcements of a leader, entered by one thread and awaited by another.

    Attributes
    ----------
    changed : threading.Condition
        Notified when an announcement is entered.
    generation : Generation or None
        Last generation that this worker takes part in.
    ending : str
        "done" or "leave" at the end of the session.
    error : str
        Why the session failed.
    pause : int
        Generation that is requested to pause.
    end : int
        Last generation that ended.
    memory_bytes : int
        Memory of this worker on its GPU; 0 for no limit.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.generation: Generation | None = None
        self.ending = self.error = ""
        self.pause = self.end = self.memory_bytes = 0
        self._is_removed = self._is_checkpoint_requested = False

    def enter(self, message: Message, reported: int) -> None:
        """Enter a message of the leader.

        Parameters
        ----------
        reported : int
            Generation that this worker reports to take part in.
        """
        with self.changed:
            match message.get("op"):
                case "welcome":
                    self.memory_bytes = int(message["memory_bytes"])
                case "generation":
                    self.generation = Generation.from_message(message)
                case "pause":
                    self.pause = int(message["generation"])
                case "end":
                    self.end = int(message["generation"])
                case "checkpoint":
                    self._is_checkpoint_requested = True
                case "removed":
                    self._is_removed, self.generation = True, None
                    self.end = max(self.end, reported)
                case "done" | "leave" as ending:
                    self.ending = ending
                case "error":
                    self.error = str(message.get("message"))
            self.changed.notify_all()

    def fail(self, error: str) -> None:
        """Enter why the session failed, unless the leader said why."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def wait(self, after: int) -> Generation | None:
        """Wait for a generation later than ``after``.

        Returns
        -------
        Generation or None
            None if the leader removed this worker, or requests a checkpoint.

        Raises
        ------
        SessionOverError
            The job is done, or this worker leaves it.
        ElasticError
            The job failed, or its leader is down for too long.
        """

        def following() -> Generation | None:
            generation = self.generation
            return generation if generation and generation.number > after else None

        def is_request() -> bool:
            return self._is_removed or self._is_checkpoint_requested

        with self.changed:
            self.changed.wait_for(lambda: self._is_over() or following() or is_request())
            if self.error:
                raise ElasticError(self.error)
            if self.ending:
                raise SessionOverError(self.ending)
            return following()

    def is_ended(self, generation: int) -> bool:
        """Whether a generation cannot go on: a member died, or the session is over."""
        return self.end >= generation or self._is_over()

    def take_removed(self) -> bool:
        """Whether the leader has removed this worker since the last call."""
        with self.changed:
            is_removed, self._is_removed = self._is_removed, False
        return is_removed

    def take_checkpoint_request(self) -> bool:
        """Whether the leader has requested a checkpoint since the last call."""
        with self.changed:
            is_requested, self._is_checkpoint_requested = self._is_checkpoint_requested, False
        return is_requested

    def _is_over(self) -> bool:
        return bool(self.error or self.ending)
