"""The client of a live cluster's controller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import grpc

from presage.errors import (
    ForbiddenError,
    InvalidJobError,
    NotYetError,
    OverloadedError,
    ServiceError,
    UnauthenticatedError,
    UnknownJobError,
)
from presage.schedulers.live.protocol.pieces import submit_requests
from presage.schedulers.live.protocol.wire import MOST_MESSAGE_BYTES
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.v1 import cluster_pb2_grpc as pb_grpc
from presage.serving.authentication.local_token import local_token_finder
from presage.serving.client.channel import is_server_status
from presage.serving.client.connection_problem import (
    describe_problem,
    find_connection_problem,
    is_timeout,
)
from presage.serving.client.credentials import Credentials

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # Not the usual two minutes: whoever watches a cluster sees it come back.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Who follows what nothing happens to is to hear that the controller is gone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidJobError,
    grpc.StatusCode.NOT_FOUND: UnknownJobError,
    grpc.StatusCode.FAILED_PRECONDITION: NotYetError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
}
Metadata = tuple[tuple[str, str], ...]


class ClusterClient:
    """A controller at ``target`` ("host:port"); a context manager.

    Without a token or a certificate, the token of a controller on this machine that the same user
    started is found by itself.

    Raises
    ------
    InvalidJobError, UnknownJobError, UnauthenticatedError, ForbiddenError
        By the calls: the controller refused, with the reason it gave.
    NotYetError
        By ``logs``: the job has not run yet.
    OverloadedError
        By ``submit``: a quota of the token is reached, or too many jobs are known.
    ServiceError
        By the calls: none is there, it cannot do it now, or it did not answer in time.
    """

    def __init__(
        self, target: str, *, credentials: Credentials | None = None, timeout_s: float = 10.0
    ) -> None:
        self._target, self._timeout_s = target, timeout_s
        self._credentials = credentials or Credentials()
        self._find_token = local_token_finder(target)
        channel_credentials = self._credentials.channel_credentials()
        self._channel = (
            grpc.insecure_channel(target, options=_OPTIONS)
            if channel_credentials is None
            else grpc.secure_channel(target, channel_credentials, options=_OPTIONS)
        )
        self._stub: Any = pb_grpc.ClusterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def submit(self, jobs: Sequence[pb.Job]) -> list[str]:
        """Submit jobs; once this returns they are on the controller's disk.

        Up to 1,000 jobs of 4 MiB together go in one call, of which all are taken or none. More go
        in several calls, one after another: where one fails, those before it are taken. Jobs that
        were submitted before, and so are known, are returned: it may be done again.
        """
        known: list[str] = []
        for request in submit_requests(jobs):
            known += self._ask("Submit", request).known
        return known

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs for good."""
        self._ask("Cancel", pb.CancelRequest(job_ids=job_ids))

    def list(
        self,
        job_ids: Sequence[str] = (),
        *,
        ended: bool = False,
        most: int = 0,
        failed_s: float = 0.0,
    ) -> pb.ListResponse:
        """Jobs and nodes as they are; ``most`` jobs, or as many as the controller lists.

        Those that failed within ``failed_s`` are in ``failed``.
        """
        request = pb.ListRequest(ended=ended, job_ids=job_ids, most=most, failed_s=failed_s)
        found: pb.ListResponse = self._ask("List", request)
        return found

    def drain(self, node: str, *, undo: bool = False, evict: bool = False) -> Sequence[str]:
        """Give a node no jobs any more; those that are still there."""
        answer = self._ask("Drain", pb.DrainRequest(node=node, undo=undo, evict=evict))
        return list(answer.job_ids)

    def explain(self, job_id: str) -> pb.Explanation:
        """Why a job is where it is."""
        found: pb.Explanation = self._ask("Explain", pb.ExplainRequest(job_id=job_id))
        return found

    def watch(self, job_ids: Sequence[str] = (), *, after: int = -1) -> Iterator[pb.Event]:
        """What happens, for as long as it is looked at."""
        return self._follow("Watch", pb.WatchRequest(after=after, job_ids=job_ids))

    def logs(self, job_id: str, *, offset: int = 0, follow: bool = False) -> Iterator[bytes]:
        """What a job wrote."""
        request = pb.LogsRequest(job_id=job_id, offset=offset, follow=follow)
        return (chunk.content for chunk in self._follow("Logs", request))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(self, method: str, request: Any) -> Any:
        def ask(metadata: Metadata) -> Any:
            return getattr(self._stub, method)(request, timeout=self._timeout_s, metadata=metadata)

        token = self._token()
        try:
            try:
                return ask(Credentials(token).metadata)
            except grpc.RpcError as error:
                if not self._is_stale(error, token):
                    raise
            token = self._token()
            return ask(Credentials(token).metadata)
        except grpc.RpcError as error:
            raise self._error(error, token) from error

    def _follow(self, method: str, request: Any) -> Iterator[Any]:
        follow, token = getattr(self._stub, method), self._token()
        try:
            has_begun = False
            try:
                for part in follow(request, metadata=Credentials(token).metadata):
                    has_begun = True
                    yield part
            except grpc.RpcError as error:
                if has_begun or not self._is_stale(error, token):
                    raise
                token = self._token()
                yield from follow(request, metadata=Credentials(token).metadata)
        except grpc.RpcError as error:
            raise self._error(error, token) from error

    def _token(self) -> str:
        return self._credentials.token or self._find_token()

    def _is_stale(self, error: Any, token: str) -> bool:
        """Whether the refused token is an earlier controller's: each that starts makes another.

        A call is refused for its token before it does anything, so it may be repeated.
        """
        if self._credentials.token or error.code() not in _REFUSED:
            return False
        self._find_token = local_token_finder(self._target)
        return self._token() != token

    def _error(self, error: Any, token: str) -> Exception:
        code, details = error.code(), error.details()
        is_known = token or (self._credentials.certificate and code is not _REFUSED[0])
        if code in _REFUSED and not is_known:
            details = (
                f"{self._target} asks who calls; pass --token-file FILE with a token that `presage "
                "token` made, or set PRESAGE_CLUSTER_TOKEN_FILE (of a controller without "
                "--tokens, only the user that started it has all roles)"
            )
        if code in _ERRORS:
            raised: Exception = _ERRORS[code](details)
            return raised
        if code is grpc.StatusCode.UNAVAILABLE and is_server_status(error):
            return ServiceError(f"{self._target}: {details}")
        why = find_connection_problem(self._channel) if is_timeout(error) else ""
        if why or code is grpc.StatusCode.UNAVAILABLE:
            problem = why or describe_problem(details)
            return ServiceError(
                f"no controller at {self._target}: {problem}; start one with "
                "`presage cluster controller`, or give the address of one that runs, and --ca if "
                "it is encrypted"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ServiceError(
                f"no controller of a cluster listens at {self._target}, but another service; give "
                "the controller's address by --controller, or PRESAGE_CLUSTER"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceError(
                f"{self._target} did not answer within {self._timeout_s:g} s; ask again"
            )
        return ServiceError(f"{self._target} failed with {code.name}: {details}")
