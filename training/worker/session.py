"""Session of a worker with its leader: reports, heartbeats, and what the leader announces.

A thread of its own receives messages, so that a ring is closed and a pause is requested while the
training loop computes. If the leader restarts, the thread connects again and repeats the last
report.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.job_folder import JobFolder
from presage.training.report import Progress, Report
from presage.training.synchronous_accumulation import Ring
from presage.training.wire import ConnectionLostError, Message, connect, receive, send
from presage.training.worker.departure import Departure
from presage.training.worker.peer_connections import Listener

HEARTBEAT_S = 1.0
START_TIMEOUT_S = 60.0  # time to wait for a leader at the start
LEADER_TIMEOUT_S = 300.0  # time to wait for a leader that is down
_RETRY_S = 0.1


class SessionOverError(ElasticError):
    """The job is done, or this worker leaves it; the message is "done" or "leave"."""

    @property
    def is_leaving(self) -> bool:
        """Whether this worker leaves a job that goes on, or that is suspended."""
        return str(self) == "leave"


@dataclass(slots=True)
class _Announced:
    """What the leader has announced."""

    generation: Generation | None = None
    ending: str = ""  # "done" or "leave"
    error: str = ""
    pause: int = 0  # generation that is requested to pause
    end: int = 0  # last generation that ended
    memory_bytes: int = 0
    is_removed: bool = False
    is_checkpoint_requested: bool = False


@dataclass(slots=True)
class _Own:
    """What this worker reports."""

    report: Report = field(default_factory=Report)
    ring: Ring | None = None
    transfer: tuple[int, socket.socket] | None = None  # generation and connection
    committed_s: float = 0.0  # when the position of the report was committed
    done: float = 0.0
    saved: float = 0.0
    is_leaving: bool = False


class Session:
    """Session of a worker with the leader of its job.

    Parameters
    ----------
    specification : dict
        What the worker trains; the leader compares it with the job's.
    """

    def __init__(self, folder: JobFolder, worker_id: str, specification: dict[str, Any]) -> None:
        self.worker_id, self.token = worker_id, ""
        self._folder, self._specification = folder, specification
        self._changed = threading.Condition()
        self._announced, self._own = _Announced(), _Own()
        self._is_closed = False
        self._departure = Departure(self.leave)
        self._wake, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self._send_lock = threading.Lock()
        self._connection: socket.socket
        self.listener: Listener

    def start(self, report: Report) -> None:
        """Connect to the leader; wait up to 60 s for it if the job's folder exists.

        Raises
        ------
        SessionOverError
            A signal requested this worker to leave.
        ElasticError
            There is no leader, or it rejects this worker.
        """
        self._own.report, self._own.committed_s = report, time.monotonic()
        self._departure.install()
        try:
            self._wait_for_leader()
        except ElasticError:
            self._departure.restore()
            raise
        threading.Thread(target=self._run, name="elastic-session", daemon=True).start()

    def install_handlers(self) -> None:
        """Set the signal handlers again, which other code may have replaced."""
        self._departure.install()

    def _wait_for_leader(self) -> None:
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._try_start(is_last=time.monotonic() >= end_s):
            if self._own.is_leaving:
                raise SessionOverError("leave")
            time.sleep(_RETRY_S)

    def _try_start(self, *, is_last: bool) -> bool:
        """Connect to the leader for the first time; return False if it cannot be reached."""
        try:
            address = self._folder.leader()
            connection = connect(address.host, address.port)
        except ElasticError:
            if is_last or not self._folder.path.is_dir():
                raise
            return False
        self.token = address.token
        self.listener = Listener(connection.getsockname()[0], self.token, self._changed)
        try:
            self._greet(connection)
        except ConnectionLostError:
            self.listener.close()
            if is_last:
                raise
            return False
        return True

    @property
    def memory_bytes(self) -> int:
        """Memory of this worker on its GPU; 0 for no limit."""
        return self._announced.memory_bytes

    def report(self, report: Report) -> None:
        """Send a report; a leader that is down gets it when it is back."""
        with self._changed:
            self._own.report = report
        self._send({"op": "report", **report.to_message()})

    def progress(self, cursor: Cursor, done: float) -> None:
        """Set the position and the fraction of the job to send with the next heartbeat."""
        self._own.report = replace(self._own.report, cursor=cursor)
        self._own.committed_s, self._own.done = time.monotonic(), done

    def note_saved(self, saved: float) -> None:
        """Set the fraction of the job in the checkpoint to send with the next heartbeat."""
        self._own.saved = saved

    def report_saved(self, cursor: Cursor, problem: str) -> None:
        """Report that the requested checkpoint is written, or why it is not."""
        self._heartbeat()
        self._send({"op": "saved", "cursor": cursor.to_message(), "problem": problem})

    def leave(self) -> None:
        """Request to leave the job; called by a signal handler, so it takes no lock."""
        self._own.is_leaving = True
        with suppress(OSError):
            self._waker.send(b"x")

    def note(self, text: str) -> None:
        """Send an event for the leader's log."""
        self._send({"op": "event", "text": text})

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
        announced = self._announced

        def is_over() -> bool:
            return bool(announced.error or announced.ending)

        def is_next() -> bool:
            return announced.generation is not None and announced.generation.number > after

        with self._changed:
            self._changed.wait_for(
                lambda: (
                    is_over()
                    or is_next()
                    or announced.is_removed
                    or announced.is_checkpoint_requested
                )
            )
            if announced.error:
                raise ElasticError(announced.error)
            if announced.ending:
                raise SessionOverError(announced.ending)
            if announced.generation is None or not is_next():
                return None
            self.listener.reject_before(announced.generation.number)
            return announced.generation

    def is_pause_requested(self, generation: int) -> bool:
        """Whether the leader requests a pause of this generation."""
        return self._announced.pause >= generation

    def is_ended(self, generation: int) -> bool:
        """Whether a generation cannot go on: a member died, or the session is over."""
        announced = self._announced
        return announced.end >= generation or bool(announced.error or announced.ending)

    def take_removed(self) -> bool:
        """Whether the leader has removed this worker, whose state is therefore outdated."""
        with self._changed:
            is_removed, self._announced.is_removed = self._announced.is_removed, False
        return is_removed

    def take_checkpoint_request(self) -> bool:
        """Whether the leader requests a checkpoint from this worker, which is paused."""
        announced = self._announced
        with self._changed:
            is_requested, announced.is_checkpoint_requested = (
                announced.is_checkpoint_requested,
                False,
            )
        return is_requested

    def attach(self, ring: Ring | None) -> None:
        """Set the ring to close when the leader ends its generation."""
        with self._changed:
            self._own.ring = ring
            self._shut_ended()

    @contextmanager
    def closed_at_end(self, connection: socket.socket, generation: int) -> Iterator[None]:
        """Shut a connection down if the leader ends its generation, so that it blocks nothing."""
        with self._changed:
            self._own.transfer = (generation, connection)
            self._shut_ended()
        try:
            yield
        finally:
            with self._changed:
                self._own.transfer = None

    def _shut_ended(self) -> None:
        """Close the ring and the transfer of a generation that ended."""
        ring, transfer = self._own.ring, self._own.transfer
        if ring is not None and self.is_ended(ring.generation):
            ring.close()
        if transfer is not None and self.is_ended(transfer[0]):
            with suppress(OSError):
                transfer[1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._departure.restore()

    def _send(self, message: Message) -> None:
        with self._send_lock, suppress(ConnectionLostError):
            send(self._connection, message)

    def _greet(self, connection: socket.socket) -> None:
        """Use a new connection: send its first message, and enter the answer."""
        hello = {
            "op": "worker",
            "token": self.token,
            "worker_id": self.worker_id,
            "port": self.listener.port,
            "specification": self._specification,
        }
        with self._send_lock:  # a report of the training loop is in this message or follows it
            self._connection = connection
            known = self._announced.generation
            hello["generation"] = known.to_message() if known else None
            send(connection, {**hello, "report": self._own.report.to_message()})
        self._enter(receive(self._connection))
        if self._announced.error:
            raise ElasticError(self._announced.error)
        if self._own.is_leaving:
            self._send({"op": "leave"})

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._listen()
            except ConnectionLostError:
                if not self._is_closed and not self._reconnected():
                    return
            except ElasticError as error:
                self._fail(str(error))
                return

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([self._connection, self._wake], [], [], HEARTBEAT_S)
            if self._connection in ready:
                self._enter(receive(self._connection))
            if self._wake in ready and self._wake.recv(64):
                self._send({"op": "leave"})
            if not ready:
                self._heartbeat()

    def _heartbeat(self) -> None:
        own = self._own
        age_s = time.monotonic() - own.committed_s
        progress = Progress(
            own.report.generation, own.report.cursor, max(0.0, age_s), own.done, own.saved
        )
        self._send({"op": "heartbeat", **progress.to_message()})

    def _reconnected(self) -> bool:
        """Connect to the leader again; return whether that succeeded."""
        end_s = time.monotonic() + LEADER_TIMEOUT_S
        while time.monotonic() < end_s and not self._is_closed:
            time.sleep(_RETRY_S)
            try:
                address = self._folder.leader()
                connection = connect(address.host, address.port)
            except ElasticError:
                continue
            self._connection.close()
            try:
                self._greet(connection)
            except ConnectionLostError:
                continue
            except ElasticError as error:
                self._fail(str(error))
                return False
            return True
        self._fail(f"no leader of job {self._folder.job!r} for {LEADER_TIMEOUT_S:g} s")
        return False

    def _fail(self, error: str) -> None:
        with self._changed:
            self._announced.error = self._announced.error or error
            self._changed.notify_all()

    def _enter(self, message: Message) -> None:
        """Enter a message of the leader."""
        announced = self._announced
        with self._changed:
            match message.get("op"):
                case "welcome":
                    announced.memory_bytes = int(message["memory_bytes"])
                case "generation":
                    announced.generation = Generation.from_message(message)
                case "pause":
                    announced.pause = int(message["generation"])
                case "end":
                    announced.end = int(message["generation"])
                case "checkpoint":
                    announced.is_checkpoint_requested = True
                case "removed":
                    announced.is_removed, announced.generation = True, None
                    announced.end = max(announced.end, self._own.report.generation)
                case "done" | "leave" as ending:
                    announced.ending = ending
                case "error":
                    announced.error = str(message.get("message"))
            self._shut_ended()
            self._changed.notify_all()
