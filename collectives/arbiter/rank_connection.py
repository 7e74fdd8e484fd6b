"""Connection of a rank to the arbiter: no method waits, whatever the arbiter does (I4).

A thread keeps the stream open. Messages of either direction may be lost when it breaks: the rank's
agreement and the controller repeat what they need. A rank without an arbiter runs its AllReduces by
the views that it has, and by ring after their windows.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import grpc

from presage.collectives.arbiter.rank_report import EndedAllReduce, PhasesLike, RankReports
from presage.collectives.arbiter.wire import (
    MAX_MESSAGE_BYTES,
    from_arbiter,
    to_arbiter,
    view_to_wire,
)
from presage.collectives.core.messages import (
    Adopted,
    Prepare,
    ToController,
    ToRank,
    Update,
    ViewUpdate,
)
from presage.collectives.core.view import JobView
from presage.collectives.v1 import arbiter_pb2 as pb
from presage.collectives.v1 import arbiter_pb2_grpc as pb_grpc
from presage.errors import InvalidRequestError
from presage.serving.client.credentials import Credentials

__all__ = ["EndedAllReduce", "PhasesLike", "RankConnection", "Registration", "SwitchAddress"]

REPORT_S = 0.2  # least time between two reports
_MOST_MESSAGES = 1024  # that wait; older ones are dropped, as if the network had lost them
_LEAVE_S = 1.0  # after which a closed stream is cut
_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 0.5
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a rank says of itself.

    Attributes
    ----------
    job : str
        Name of the job: up to 64 letters, digits and ``._:/-``.
    rank, ranks : int
        Place of this rank, and the number of ranks.
    token : str
        Token of the job, the same on all ranks and secret to other jobs; it is sent as SHA-256.
    node : str
        Name of the rank's node in the topology; "" if unknown.
    agreement : str
        How the ranks agree on views: "in_band" or "two_phase".
    """

    job: str
    rank: int
    ranks: int
    token: str
    node: str = ""
    agreement: str = "in_band"


class SwitchAddress(NamedTuple):
    """Switch that aggregates for the job, and the epoch to register with there."""

    name: str
    host: str
    port: int
    token: str
    epoch: int


class RankConnection:
    """Stream of a rank, reopened whenever it breaks, in threads of its own.

    Parameters
    ----------
    target : str
        Address of the arbiter, "host:port".
    registration : Registration
        What the rank says of itself.
    token : str
        Token for the arbiter; "" for none, or for the local token of an arbiter of this user.
    credentials : Credentials, optional
        Token and certificates instead of ``token``, for an arbiter with TLS.

    Attributes
    ----------
    switches : tuple of SwitchAddress
        Switches of the job, the topmost one first; () until it is registered.
    problem : str
        Why the rank is not connected; "" while it is.
    """

    def __init__(
        self,
        target: str,
        registration: Registration,
        *,
        token: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        self.registration = registration
        self.switches: tuple[SwitchAddress, ...] = ()
        self.problem = "not connected yet"
        self._target = target
        self._credentials = credentials or Credentials(token=token)
        self._instance = secrets.token_hex(8)
        self._arrived: deque[ToRank] = deque(maxlen=_MOST_MESSAGES)
        self._outgoing: deque[ToController] = deque(maxlen=_MOST_MESSAGES)
        self._reports = RankReports()
        self._views: dict[int, JobView] = {}  # by epoch: that the rank may use
        self._newest = 0
        self._lock = threading.Lock()  # of the views
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._run, name="inc-arbiter", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_connected(self) -> bool:
        """Whether the arbiter has accepted the rank, and its stream is open."""
        return not self.problem

    def messages(self) -> list[ToRank]:
        """Return the messages that have arrived since the last call."""
        found = []
        while self._arrived:
            found.append(self._arrived.popleft())
        return found

    def send(self, message: ToController) -> None:
        """Queue a message of the rank's agreement to the controller."""
        if isinstance(message, Adopted):
            with self._lock:
                for epoch in [epoch for epoch in self._views if epoch < message.epoch]:
                    del self._views[epoch]
        self._outgoing.append(message)
        self._woken.set()

    def report(self, phases: PhasesLike | None, *, started: int, now_s: float) -> None:
        """Replace the next report.

        Parameters
        ----------
        phases : Phases or None
            Rhythm of the job; None if its arrivals cannot be predicted.
        started : int
            Number of the AllReduce that was started last; -1 before the first one.
        now_s : float
            Time by the clock of ``phases``.
        """
        self._reports.replace(phases, started, now_s)

    def record(self, ended: EndedAllReduce) -> None:
        """Record an AllReduce that has ended, for status and time line: an append, no more."""
        self._reports.record(ended)

    def close(self) -> None:
        """End the stream and the thread, without waiting for either."""
        self._closed.set()
        self._woken.set()  # the last message of the stream says that the rank leaves
        call = self._call
        if call is not None:
            timer = threading.Timer(_LEAVE_S, call.cancel)
            timer.daemon = True
            timer.start()

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            try:
                is_served = self._serve()
            except Exception as error:  # the thread of a user's job must not end by anything
                is_served = False
                self._note_problem(f"{type(error).__name__}: {error}")
            retry_s = _FIRST_RETRY_S if is_served else min(2 * retry_s, _LAST_RETRY_S)
            self._closed.wait(retry_s * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret

    def _serve(self) -> bool:
        """Open one stream and read it until it ends; return whether the rank was registered."""
        is_registered = False
        with self._channel() as channel:
            stub: Any = pb_grpc.ArbiterServiceStub(channel)  # type: ignore[no-untyped-call]
            ended = threading.Event()
            metadata = self._credentials.metadata_for(self._target)()
            call = stub.Connect(self._sent(ended), metadata=metadata)
            self._call = call
            try:
                if self._closed.is_set():
                    return False
                for message in call:
                    is_registered = self._receive(message) or is_registered
                self._note_problem("the arbiter ended the stream")
            except grpc.RpcError as error:
                self._note_problem(str(error.details() if hasattr(error, "details") else error))
            finally:
                ended.set()
                self._woken.set()
                call.cancel()
                self._call = None
        return is_registered

    def _channel(self) -> grpc.Channel:
        credentials = self._credentials.channel_credentials()
        if credentials is None:
            return grpc.insecure_channel(self._target, options=_OPTIONS)
        return grpc.secure_channel(self._target, credentials, options=_OPTIONS)

    def _sent(self, ended: threading.Event) -> Iterator[pb.RankMessage]:
        """Yield the messages of one stream; runs in a thread of gRPC."""
        yield pb.RankMessage(registration=self.wire_registration())
        next_report_s = 0.0
        while not (ended.is_set() or self._closed.is_set()):
            self._woken.clear()
            while self._outgoing:
                yield to_arbiter(self._outgoing.popleft())
            now_s = time.monotonic()
            if now_s >= next_report_s:
                next_report_s = now_s + REPORT_S
                if (report := self._reports.take()) is not None:
                    yield pb.RankMessage(report=report)
            self._woken.wait(max(0.0, next_report_s - time.monotonic()))
        yield pb.RankMessage(leave=pb.Leave())

    def wire_registration(self) -> pb.Registration:
        """Return the registration to send, with the views that the rank may use."""
        own = self.registration
        with self._lock:
            views = [view_to_wire(self._views[epoch]) for epoch in sorted(self._views)]
            newest = self._newest
        return pb.Registration(
            job=own.job,
            rank=own.rank,
            ranks=own.ranks,
            job_token_sha256=hashlib.sha256(own.token.encode()).digest(),
            node=own.node,
            instance=self._instance,
            agreement=own.agreement,
            views=views,
            newest_epoch=newest,
        )

    def _receive(self, message: pb.ArbiterMessage) -> bool:
        """Store a message; return whether it is the confirmation of the registration."""
        if message.WhichOneof("content") == "registered":
            self.switches = tuple(
                SwitchAddress(s.name, s.host, s.port, s.token, s.epoch)
                for s in message.registered.switches
            )
            self.problem = ""
            return True
        try:
            found = from_arbiter(message, self.registration.job, self.registration.rank)
        except InvalidRequestError as error:
            _log.warning("message of the arbiter is ignored: %s", error)
            return False
        if found is not None:
            self.remember_views(found)
            self._arrived.append(found)
        return False

    def remember_views(self, message: ToRank) -> None:
        """Remember the views that the rank may use from now on, for its next registration."""
        with self._lock:
            if isinstance(message, ViewUpdate):
                for view in message.views:
                    if view.epoch > self._newest:
                        self._views[view.epoch] = replace(view)
                epochs = [view.epoch for view in message.views]
                self._newest = max([self._newest, *epochs])
            elif isinstance(message, Prepare | Update):
                self._newest = max(self._newest, message.tag)

    def _note_problem(self, problem: str) -> None:
        if problem != self.problem and not self._closed.is_set():
            _log.warning("no arbiter at %s: %s; AllReduces go on", self._target, problem)
        self.problem = problem or "no connection"
