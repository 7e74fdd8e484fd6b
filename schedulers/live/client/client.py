"""Client of a live cluster's controller."""

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
from presage.schedulers.live.protocol.wire import MAX_MESSAGE_BYTES
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
from presage.serving.client.trace_context import trace_metadata

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # Instead of the default two minutes, so that a watching client reconnects quickly.
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A stream without events has to notice that the controller is gone.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)
_REJECTED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_ERRORS = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidJobError,
    grpc.StatusCode.NOT_FOUND: UnknownJobError,
    grpc.StatusCode.FAILED_PRECONDITION: NotYetError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: ForbiddenError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
}
WHAT_IF_TIMEOUT_S = 60.0
Metadata = tuple[tuple[str, str], ...]


class ClusterClient:
    """Client of the controller at ``target`` ("host:port"); a context manager.

    Without a token or a certificate, it uses the token of a controller that the same user started
    on this machine.

    Raises
    ------
    InvalidJobError, UnknownJobError, UnauthenticatedError, ForbiddenError
        From all methods: the controller rejected the request, for the reason in the message.
    NotYetError
        From ``logs``: the job has not run yet.
    OverloadedError
        From ``submit``: a quota of the token is reached, or the controller has too many jobs. From
        ``what_if``: too many questions wait.
    ServiceError
        From all methods: the controller is not reachable, cannot serve the request now, or did not
        respond in time.
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
        """Submit jobs; return the ids of those that the controller knew already.

        On return the jobs are on the controller's disk. Up to 1,000 jobs of at most 4 MiB are
        submitted in one request, which is accepted or rejected as a whole. More take several
        requests in a row; if one fails, the ones before it remain accepted. It is safe to submit
        the same jobs again.
        """
        known: list[str] = []
        for request in submit_requests(jobs):
            known += self._call("Submit", request).existing_job_ids
        return known

    def cancel(
        self, job_ids: Sequence[str] = (), *, user: str = "", everything: bool = False
    ) -> Sequence[str]:
        """Cancel jobs: those named, those of a user, or all; return the ones that end by this."""
        request = pb.CancelRequest(job_ids=job_ids, user=user, all=everything)
        return list(self._call("Cancel", request).job_ids)

    def hold(self, job_ids: Sequence[str]) -> None:
        """Keep jobs from starting; a running job goes on."""
        self._call("Hold", pb.HoldRequest(job_ids=job_ids))

    def release(self, job_ids: Sequence[str]) -> None:
        """Let held jobs start again."""
        self._call("Hold", pb.HoldRequest(job_ids=job_ids, release=True))

    def requeue(self, job_ids: Sequence[str]) -> None:
        """Let running jobs save their state and return to the queue."""
        self._call("Requeue", pb.RequeueRequest(job_ids=job_ids))

    def set_priority(self, job_ids: Sequence[str], priority: int) -> None:
        """Set the priority of jobs."""
        self._call("SetPriority", pb.SetPriorityRequest(job_ids=job_ids, priority=priority))

    def set_quota(
        self, user: str, *, devices: float | None = None, weight: float | None = None
    ) -> float:
        """Set the quota of a user, or of users without one if the name is "".

        Return the number of devices that the user's jobs hold now. Numbers that are None stay as
        they are.
        """
        quota = pb.Quota(user=user, devices=devices, weight=weight)
        held: float = self._call("SetQuota", pb.SetQuotaRequest(quota=quota)).held_devices
        return held

    def remove_quota(self, user: str) -> None:
        """Remove the quota of a user, or of users without one if the name is ""."""
        self._call("SetQuota", pb.SetQuotaRequest(quota=pb.Quota(user=user), remove=True))

    def quotas(self) -> pb.QuotasResponse:
        """Return the quotas, what users hold, and their past use."""
        found: pb.QuotasResponse = self._call("Quotas", pb.QuotasRequest())
        return found

    def list(
        self,
        job_ids: Sequence[str] = (),
        *,
        ended: bool = False,
        limit: int = 0,
        failed_s: float = 0.0,
        user: str = "",
        node: str = "",
        states: Sequence[str] = (),
        offset: int = 0,
    ) -> pb.ListResponse:
        """Return the jobs and nodes; at most ``limit`` jobs, or the controller's maximum.

        The first ``offset`` jobs are skipped.

        Jobs that failed within the last ``failed_s`` seconds are in ``failed_jobs``. ``user``,
        ``node`` and ``states`` select jobs; the states are those of
        :data:`presage.schedulers.live.protocol.job_states.STATES`.
        """
        request = pb.ListRequest(
            include_ended=ended,
            job_ids=job_ids,
            limit=limit,
            failed_within_s=failed_s,
            user=user,
            node=node,
            states=states,
            offset=offset,
        )
        found: pb.ListResponse = self._call("List", request)
        return found

    def drain(
        self, node: str, *, undo: bool = False, evict: bool = False, reason: str = ""
    ) -> Sequence[str]:
        """Stop scheduling jobs on a node or a device, NODE/NUMBER; return the jobs still on it."""
        request = pb.DrainRequest(node=node, undo=undo, evict=evict, reason=reason)
        response = self._call("Drain", request)
        return list(response.job_ids)

    def outages(self) -> pb.OutagesResponse:
        """Return the outages of devices so far."""
        found: pb.OutagesResponse = self._call("Outages", pb.OutagesRequest())
        return found

    def history(
        self, from_unix_s: float = 0.0, to_unix_s: float = 0.0, *, step_s: float = 0.0
    ) -> pb.HistoryResponse:
        """Return samples of the cluster's state, by default of the last hour and each minute."""
        request = pb.HistoryRequest(from_unix_s=from_unix_s, to_unix_s=to_unix_s, step_s=step_s)
        found: pb.HistoryResponse = self._call("History", request)
        return found

    def explain(self, job_id: str) -> pb.Explanation:
        """Explain the state of a job."""
        found: pb.Explanation = self._call("Explain", pb.ExplainRequest(job_id=job_id))
        return found

    def what_if(self, request: pb.WhatIfRequest) -> pb.WhatIfResponse:
        """Predict when jobs start and end; it takes up to half a minute, longer if others ask."""
        found: pb.WhatIfResponse = self._call("WhatIf", request, timeout_s=WHAT_IF_TIMEOUT_S)
        return found

    def watch(self, job_ids: Sequence[str] = (), *, after: int = -1) -> Iterator[pb.Event]:
        """Yield events, for as long as the iterator is used."""
        return self._stream("Watch", pb.WatchRequest(after_entry=after, job_ids=job_ids))

    def logs(self, job_id: str, *, offset: int = 0, follow: bool = False) -> Iterator[bytes]:
        """Yield the log of a job in chunks."""
        request = pb.LogsRequest(job_id=job_id, offset=offset, follow=follow)
        return (chunk.content for chunk in self._stream("Logs", request))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _call(self, method: str, request: Any, *, timeout_s: float = 0.0) -> Any:
        timeout_s = timeout_s or self._timeout_s

        traced = trace_metadata()

        def call(metadata: Metadata) -> Any:
            metadata = (*metadata, *traced)
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=metadata)

        token = self._token()
        try:
            try:
                return call(Credentials(token).metadata)
            except grpc.RpcError as error:
                if not self._is_stale(error, token):
                    raise
            token = self._token()
            return call(Credentials(token).metadata)
        except grpc.RpcError as error:
            raise self._error(error, token, timeout_s) from error

    def _stream(self, method: str, request: Any) -> Iterator[Any]:
        stream, token = getattr(self._stub, method), self._token()
        try:
            has_begun = False
            try:
                for part in stream(request, metadata=Credentials(token).metadata):
                    has_begun = True
                    yield part
            except grpc.RpcError as error:
                if has_begun or not self._is_stale(error, token):
                    raise
                token = self._token()
                yield from stream(request, metadata=Credentials(token).metadata)
        except grpc.RpcError as error:
            raise self._error(error, token) from error

    def _token(self) -> str:
        return self._credentials.token or self._find_token()

    def _is_stale(self, error: Any, token: str) -> bool:
        """Return whether the rejected token is an earlier controller's: each creates its own.

        A rejected request has no effect, so it may be repeated.
        """
        if self._credentials.token or error.code() not in _REJECTED:
            return False
        self._find_token = local_token_finder(self._target)
        return self._token() != token

    def _error(self, error: Any, token: str, timeout_s: float = 0.0) -> Exception:
        code, details = error.code(), error.details()
        is_known = token or (self._credentials.certificate and code is not _REJECTED[0])
        if code in _REJECTED and not is_known:
            details = (
                f"{self._target} requires authentication; pass --token-file FILE with a token from "
                "`presage token`, or set PRESAGE_CLUSTER_TOKEN_FILE (without --tokens, only the "
                "user that started the controller has access)"
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
                "`presage cluster controller`, or give the address of a running one, and --ca if "
                "it is encrypted"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ServiceError(
                f"the service at {self._target} is no controller of a cluster, or one of an "
                "earlier version; give the controller's address by --controller or PRESAGE_CLUSTER"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceError(f"{self._target} did not respond within {timeout_s:g} s; try again")
        return ServiceError(f"{self._target} failed with {code.name}: {details}")
