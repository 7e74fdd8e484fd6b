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
from typing import Any

from presage.errors import ElasticError
from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.job_folder import JobFolder, LeaderAddress
from presage.training.report import Report
from presage.training.synchronous_accumulation import Ring
from presage.training.wire import ConnectionLostError, Message, receive
from presage.training.worker.announcements import Announcements, SessionOverError
from presage.training.worker.departure import Departure
from presage.training.worker.leader_connection import LeaderConnection
from presage.training.worker.open_connections import OpenConnections
from presage.training.worker.peer_connections import Listener
from presage.training.worker.reported_state import ReportedState

HEARTBEAT_S = 1.0
START_TIMEOUT_S = 60.0  # time to wait for a leader at the start
LEADER_TIMEOUT_S = 300.0  # time to wait for a leader that is down
_RETRY_S = 0.1


class Session:
    """Session of a worker with the leader of its job.

    Parameters
    ----------
    specification : dict
        What the worker trains; the leader compares it with the job's.
    """

    def __init__(self, folder: JobFolder, worker_id: str, specification: dict[str, Any]) -> None:
        self.worker_id, self._specification = worker_id, specification
        self._announced, self._own = Announcements(), ReportedState()
        self._changed = self._announced.changed
        self.open_connections = OpenConnections(self._changed, self._announced.is_ended)
        self._leader = LeaderConnection(folder)
        self._share_bytes: int | None = None
        self._is_closed = False
        self._departure = Departure()
        self.listener: Listener

    @property
    def token(self) -> str:
        """Token of the job, as its last leader has it."""
        return self._leader.address.token

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
        self._share_bytes = (
            self._leader.folder.memory_bytes()
        )  # written before the leader's address
        threading.Thread(target=self._run, name="elastic-session", daemon=True).start()

    def install_handlers(self) -> None:
        """Set the signal handlers again, which other code may have replaced."""
        self._departure.install()

    def _wait_for_leader(self) -> None:
        end_s = time.monotonic() + START_TIMEOUT_S
        while not self._try_start(is_last=time.monotonic() >= end_s):
            if self._departure.is_requested:
                raise SessionOverError("leave")
            time.sleep(_RETRY_S)

    def _try_start(self, *, is_last: bool) -> bool:
        """Connect to the leader for the first time; return False if it cannot be reached."""
        try:
            address, connection = self._leader.connect()
        except ElasticError:
            if is_last or not self._leader.folder.path.is_dir():
                raise
            return False
        self.listener = Listener(connection.getsockname()[0], address.token, self._changed)
        try:
            self._greet(address, connection)
        except ConnectionLostError:
            self.listener.close()
            if is_last:
                raise
            return False
        return True

    @property
    def memory_bytes(self) -> int:
        """Memory of this worker on its GPU, as last read from the job's folder; 0 for no limit."""
        share_bytes = self._share_bytes
        return self._announced.memory_bytes if share_bytes is None else share_bytes

    def report(self, report: Report) -> None:
        """Send a report; a leader that is down gets it when it is back."""
        with self._changed:
            self._own.report = report
        self._leader.send({"op": "report", **report.to_message()})

    def progress(self, cursor: Cursor, done: float) -> None:
        """Set the position and the fraction of the job to send with the next heartbeat."""
        self._own.commit(cursor, done)

    def note_saved(self, saved: float) -> None:
        """Set the fraction of the job in the checkpoint to send with the next heartbeat."""
        self._own.saved = saved

    def report_saved(self, cursor: Cursor, problem: str) -> None:
        """Report that the requested checkpoint is written, or why it is not."""
        self._leader.send(self._own.heartbeat())
        self._leader.send({"op": "saved", "cursor": cursor.to_message(), "problem": problem})

    def note(self, text: str) -> None:
        """Send an event for the leader's log."""
        self._leader.send({"op": "event", "text": text})

    def wait(self, after: int) -> Generation | None:
        """Wait for a generation later than ``after``; see :meth:`Announcements.wait`."""
        generation = self._announced.wait(after)
        if generation is not None:
            self.listener.reject_before(generation.number)
        return generation

    def is_pause_requested(self, generation: int) -> bool:
        """Whether the leader requests a pause of this generation."""
        return self._announced.pause >= generation

    def is_ended(self, generation: int) -> bool:
        """Whether a generation cannot go on: a member died, or the session is over."""
        return self._announced.is_ended(generation)

    def take_removed(self) -> bool:
        """Whether the leader has removed this worker, whose state is therefore outdated."""
        return self._announced.take_removed()

    def take_checkpoint_request(self) -> bool:
        """Whether the leader requests a checkpoint from this worker, which is paused."""
        return self._announced.take_checkpoint_request()

    def attach(self, ring: Ring | None) -> None:
        """Set the ring to close when the leader ends its generation."""
        self.open_connections.attach(ring)

    def close(self) -> None:
        """Close all connections."""
        self._is_closed = True
        self._leader.shut()
        self.listener.close()
        self._departure.restore()

    def _greet(self, address: LeaderAddress, connection: socket.socket) -> None:
        """Use a new connection to a leader; raise ElasticError if it rejects this worker."""
        self._enter(self._leader.use(address, connection, self._hello))
        if self._announced.error:
            raise ElasticError(self._announced.error)
        if self._departure.is_requested:
            self._leader.send({"op": "leave"})

    def _hello(self) -> Message:
        known = self._announced.generation
        return {
            "op": "worker",
            "worker_id": self.worker_id,
            "port": self.listener.port,
            "specification": self._specification,
            "generation": known.to_message() if known else None,
            "report": self._own.report.to_message(),
        }

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._listen()
            except ConnectionLostError:
                if not self._is_closed and not self._reconnected():
                    return
            except ElasticError as error:
                self._announced.fail(str(error))
                return

    def _listen(self) -> None:
        leader, departure = self._leader.socket, self._departure.fileno()
        while True:
            ready, _, _ = select.select([leader.fileno(), departure], [], [], HEARTBEAT_S)
            if leader.fileno() in ready:
                self._enter(receive(leader))
            if departure in ready:
                self._departure.clear()
                self._leader.send({"op": "leave"})
            if not ready:
                self._leader.send(self._own.heartbeat())
                self._share_bytes = self._leader.folder.memory_bytes()
                if self._leader.has_moved():
                    self._leader.send({"op": "moved"})
                    raise ConnectionLostError("the folder of the job names another leader")

    def _reconnected(self) -> bool:
        """Connect to the leader again; return whether that succeeded."""
        end_s = time.monotonic() + LEADER_TIMEOUT_S
        while time.monotonic() < end_s and not self._is_closed:
            time.sleep(_RETRY_S)
            try:
                address, connection = self._leader.connect()
            except ElasticError:
                continue
            self._leader.socket.close()
            self._listen_for_members(connection.getsockname()[0], address.token)
            try:
                self._greet(address, connection)
            except ConnectionLostError:
                continue
            except ElasticError as error:
                self._announced.fail(str(error))
                return False
            return True
        job = self._leader.folder.job
        self._announced.fail(f"no leader of job {job!r} for {LEADER_TIMEOUT_S:g} s")
        return False

    def _listen_for_members(self, host: str, token: str) -> None:
        """Accept a leader's token, at the address from which this worker reaches that leader."""
        if host == self.listener.host:
            self.listener.accept_token(token)
            return
        self.listener.close()
        self.listener = Listener(host, token, self._changed)

    def _enter(self, message: Message) -> None:
        """Enter a message of the leader, and close what it ended."""
        with self._changed:
            self._announced.enter(message, self._own.report.generation)
            self.open_connections.shut_ended()
