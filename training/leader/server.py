"""Server of a leader: connections of workers, and requests of operators."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from presage.errors import ElasticError, one_line
from presage.training.data_set_grouping import Cursor
from presage.training.generation import Generation
from presage.training.job_folder import JobFolder
from presage.training.job_management import Leader
from presage.training.leader.job_status import job_status
from presage.training.leader.worker import Worker
from presage.training.report import Progress, Report
from presage.training.wire import (
    MAX_HELLO_BYTES,
    ConnectionLostError,
    Message,
    encode,
    error_message,
    has_token,
    read,
)

_TICK_S = 0.2
_HELLO_S = 10.0  # time for the first message of a connection
_MOST_UNKNOWN = 128  # connections without a token at the same time
_GOODBYE_S = 10.0  # time for workers to close their connections after the end of the job


class _Channel:
    """Connection to a worker."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, message: Message) -> None:
        """Send a message; ignored if the connection is closed."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


class LeaderServer:
    """TCP server of a leader."""

    def __init__(self, leader: Leader, folder: JobFolder) -> None:
        self._leader, self._folder = leader, folder
        self._token = folder.token()
        self._open = 0  # connections of workers
        self._unknown = 0  # connections that have not sent the token
        self._idle_since_s = time.monotonic()
        self._is_stopped = False

    async def run(self) -> None:
        """Serve until the job is done or has failed, and its workers have disconnected."""
        server = await asyncio.start_server(self._serve, self._leader.config.host, 0)
        host, port = server.sockets[0].getsockname()[:2]
        self._folder.publish(host, port)
        due_s = time.monotonic()
        end_s: float | None = None
        while not self._must_end() and (end_s is None or (self._open and time.monotonic() < end_s)):
            due_s = max(due_s + _TICK_S, time.monotonic())
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            late_s = time.monotonic() - due_s
            self._leader.tick(late_s if late_s > _TICK_S else 0.0)
            if self._leader.outcome and end_s is None:
                end_s = time.monotonic() + _GOODBYE_S
        server.close()
        if not self._leader.is_superseded:
            self._folder.withdraw()

    def _must_end(self) -> bool:
        """Whether to end before the job does: on request, or after a time without workers."""
        now_s, idle_exit_s = time.monotonic(), self._leader.config.idle_exit_s
        if self._open:
            self._idle_since_s = now_s
        is_ended = self._is_stopped or self._leader.is_superseded
        return is_ended or 0 < idle_exit_s < now_s - self._idle_since_s

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            message = await self._hello(reader)
            if not has_token(message, self._token):
                text = f"wrong token for job {self._leader.job!r}"
                writer.write(encode({**error_message(text), "is_token_wrong": True}))
            elif message.get("op") == "worker":
                await self._serve_worker(message, reader, writer)
            else:
                writer.write(encode(self._answer(message)))
        except (ConnectionLostError, TimeoutError):
            pass
        except (ElasticError, OSError) as error:
            with suppress(OSError):
                writer.write(encode(error_message(one_line(error))))
        finally:
            with suppress(OSError):
                await writer.drain()
            writer.close()

    async def _hello(self, reader: asyncio.StreamReader) -> Message:
        """Return the first message of a connection, unless too many have not sent theirs."""
        if self._unknown >= _MOST_UNKNOWN:
            raise ConnectionLostError("too many connections without a token")
        self._unknown += 1
        try:
            return await asyncio.wait_for(read(reader, MAX_HELLO_BYTES), _HELLO_S)
        finally:
            self._unknown -= 1

    async def _serve_worker(
        self, hello: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = writer.get_extra_info("peername")[0]
        try:
            worker = Worker(str(hello["worker_id"])[:200], peer, int(hello["port"]))
            report, specification = (
                Report.from_message(hello["report"]),
                dict(hello["specification"]),
            )
            known = hello.get("generation")
            generation = None if known is None else Generation.from_message(known)
        except (KeyError, TypeError, ValueError):
            raise ElasticError("first message of a worker is not valid") from None
        channel, worker_id = _Channel(writer), worker.worker_id
        try:
            self._leader.connect(worker, specification, report, channel, generation)
        except OSError as error:  # full disk: the worker connects again
            self._leader.note_problem(error)
            return
        self._open += 1
        try:
            while True:
                message = await read(reader)
                self._leader.note_message(worker_id)
                self._handle(worker_id, message)
        except ConnectionLostError:
            pass
        finally:
            self._open -= 1
            self._leader.disconnect(worker_id, channel)

    def _handle(self, worker_id: str, message: Message) -> None:
        """Enter a message of a connected worker; one that was removed is ignored."""
        if worker_id not in self._leader.membership.workers or self._leader.outcome:
            return
        match message.get("op"):
            case "report":
                self._leader.enter_report(worker_id, Report.from_message(message))
            case "heartbeat":
                progress = Progress.from_message(message)
                self._leader.progress.enter(worker_id, progress, self._leader.current)
            case "leave":
                self._leader.leave(worker_id)
            case "saved":
                cursor = Cursor.from_message(message["cursor"])
                self._leader.enter_saved(worker_id, cursor, one_line(message["problem"]))
            case "moved":
                self._leader.note(f"worker {worker_id} changes to another leader; this one ends")
                self._leader.is_superseded = True
            case "event":
                self._leader.note(one_line(message.get("text", "")))
            case other:
                raise ElasticError(f"unknown message {other!r} of worker {worker_id!r}")

    def _answer(self, request: Message) -> dict[str, Any]:
        match request.get("op"):
            case "status":
                return job_status(self._leader)
            case "resize":
                self._leader.resize(*_resize_of(request))
                return {"op": "ok"}
            case "stop":
                self._is_stopped = True
                return {"op": "ok"}
            case other:
                raise ElasticError(f"unknown request {other!r}; known are status, resize and stop")


def _resize_of(request: Message) -> tuple[int, list[str] | None]:
    """Return the number and the names of a resize request."""
    workers, names = request.get("workers"), request.get("names")
    if type(workers) is not int:
        raise ElasticError(f"workers={workers!r} of a resize request must be an integer")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(name, str) for name in names)
    ):
        raise ElasticError(f"names={names!r} of a resize request must be a list of strings")
    return workers, names
