"""Questions to the controller, answered outside of its lock, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from presage.errors import ConfigError, InvalidJobError, InvalidRequestError, OverloadedError
from presage.schedulers.core.forecasts import Forecaster
from presage.schedulers.core.job import Job
from presage.schedulers.live.controller.controller import Controller
from presage.schedulers.live.controller.controller_core import Core
from presage.schedulers.live.controller.elastic.members import check_job
from presage.schedulers.live.controller.ownership import check_owner
from presage.schedulers.live.controller.what_if.live_snapshot import LiveCopy, copy_state
from presage.schedulers.live.protocol.what_if_messages import answers_message
from presage.schedulers.live.protocol.wire import read_job
from presage.schedulers.policies.policy_registry import policy_names
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.what_if.answer import Answer
from presage.schedulers.what_if.future_processes import PROCESSES, Deadline
from presage.schedulers.what_if.snapshot import Snapshot
from presage.schedulers.what_if.variant import AS_REQUESTED, Variant
from presage.schedulers.what_if.what_if import HORIZON_S, LIMIT_S, SAMPLES, what_if
from presage.serving.authentication.callers import Caller
from presage.system.text.known_names import did_you_mean

MAX_WAITING = 8  # questions
MAX_TIMES = 32  # of within_s


class Questions:
    """Answers questions about a live cluster in a thread.

    Parameters
    ----------
    policy : str
        Name of the cluster's policy, with its parameters.
    """

    def __init__(self, controller: Controller, policy: str) -> None:
        self._controller, self._policy = controller, policy
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, request: pb.WhatIfRequest, caller: Caller) -> pb.WhatIfResponse:
        """Return the answers to a request.

        Raises
        ------
        InvalidRequestError, InvalidJobError, UnknownJobError
            A field is not valid, or a job neither waits nor runs.
        ForbiddenError
            A named job belongs to another user: its end and its variants depend on its forecasts.
        OverloadedError
            Too many questions wait.
        """
        _check(request)
        await self._controller.read(lambda core, _: _check_owners(core, request, caller))
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(
                f"{self._waiting} questions wait for their answers; try again in a few seconds"
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await self._answer(request)
        finally:
            self._waiting -= 1

    async def _answer(self, request: pb.WhatIfRequest) -> pb.WhatIfResponse:
        copied = await self._copy()
        time_unix_s = time.time()
        if copied is None:
            raise InvalidRequestError(
                "no node is available, so nothing can be predicted; `presage cluster ps --nodes` "
                "has the reasons"
            )
        policy, make_forecaster = self._policy, self._controller.make_forecaster
        found = await asyncio.to_thread(_answers, request, copied, policy, make_forecaster)
        snapshot, answers = found
        response = answers_message(
            answers,
            snapshot,
            within_s=request.within_s,
            time_unix_s=time_unix_s,
            samples=request.samples or SAMPLES,
            horizon_s=request.horizon_s or HORIZON_S,
        )
        now = await self._copy()
        if now is None or now.devices != copied.devices:
            response.assumptions.append(
                "the nodes are those at the time of the question; they have changed since"
            )
        return response

    async def _copy(self) -> LiveCopy | None:
        copied = await self._controller.read(copy_state)
        if copied is not None:
            return copied

        def rebuild(core: Core, now_s: float) -> LiveCopy | None:
            return None if core.view(now_s) is None else copy_state(core, now_s)

        return await self._controller.read_in_thread(rebuild)


def _answers(
    request: pb.WhatIfRequest,
    copied: LiveCopy,
    policy: str,
    make_forecaster: Callable[[], Forecaster],
) -> tuple[Snapshot, list[Answer]]:
    snapshot = copied.snapshot()
    jobs: list[str | Job] = list(dict.fromkeys(request.job_ids))
    if request.HasField("new_job"):
        submitted = read_job(request.new_job, snapshot.now_s, "new_job")
        check_job(submitted.job)
        jobs.append(submitted.job)
    is_all = not jobs
    if is_all:
        jobs.extend(snapshot.pending)
        jobs.extend(one.job.job_id for one in snapshot.returning)
        jobs.extend(snapshot.impossible)
    try:
        return snapshot, what_if(
            snapshot,
            jobs,
            policy=policy,
            forecaster=make_forecaster(),
            variants=[read_variant(row) for row in request.variants] or [AS_REQUESTED],
            samples=request.samples or SAMPLES,
            horizon_s=request.horizon_s or HORIZON_S,
            seed=request.seed,
            ends=not is_all,
            should_stop=Deadline(time.monotonic() + LIMIT_S),
            processes=PROCESSES,
        )
    except ConfigError as error:
        raise InvalidRequestError(str(error)) from None


def read_variant(row: pb.WhatIfVariant) -> Variant:
    """Return the variant in a message.

    Raises
    ------
    InvalidRequestError
        The policy is not a registered one: the controller imports no other code.
    InvalidJobError
        A number is not valid.
    """
    name, *settings = row.policy.split(":")
    if row.policy and (name not in policy_names() or (settings and "=" not in settings[0])):
        raise InvalidRequestError(
            f"policy {row.policy!r} is not registered; {did_you_mean(name, policy_names())}"
        )
    if row.gpus < 0 or not 0 <= row.compute_milli <= 1000:
        raise InvalidJobError(
            f"variant with gpus={row.gpus} and compute_milli={row.compute_milli}, must be >= 0, "
            "and within 0 and 1,000"
        )
    return Variant(
        row.gpus or None,
        tuple(row.kinds) or None,
        row.compute_milli / 1000 if row.compute_milli else None,
        row.policy or None,
    )


def _check_owners(core: Core, request: pb.WhatIfRequest, caller: Caller) -> None:
    for job_id in request.job_ids:
        check_owner(caller, core.job(job_id))


def _check(request: pb.WhatIfRequest) -> None:
    if len(request.within_s) > MAX_TIMES:
        raise InvalidRequestError(
            f"within_s has {len(request.within_s)} times, must have at most {MAX_TIMES}"
        )
