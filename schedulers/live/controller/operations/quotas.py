"""Changes of quotas by administrators, and the check of new jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from presage.errors import ConfigError, InvalidJobError, InvalidRequestError, UnknownJobError
from presage.schedulers.core.allocation import FULL_DEVICE_MILLI
from presage.schedulers.core.policy import PolicyNeeds
from presage.schedulers.core.users.quota import (
    DEFAULT,
    Quota,
    Quotas,
    check_user_name,
    least_milli,
    why_never,
)
from presage.schedulers.live.controller.journal.records import QuotaChanged, Record
from presage.schedulers.live.controller.operations.user_shares import UserShares
from presage.schedulers.live.protocol.submitted_job import SubmittedJob
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.system.text.known_names import did_you_mean


def quota_records(shares: UserShares, request: pb.SetQuotaRequest, now_s: float) -> list[Record]:
    """Return the records that set or remove a quota.

    Raises
    ------
    InvalidRequestError
        A number or the name is not valid, or there is no number.
    UnknownJobError
        There is no such quota to remove.
    """
    row, user = request.quota, request.quota.user
    before = shares.quotas.of_user.get(user)
    if request.remove:
        if before is None:
            known = [one for one in shares.quotas.of_user if one != DEFAULT]
            subject = f"user {user!r} has no quota" if user else "there is no default quota"
            hint = f"; {did_you_mean(user, known)}" if user and known else ""
            raise UnknownJobError(f"{subject}{hint}")
        return [QuotaChanged(user, None, None, now_s)]
    if not (row.HasField("devices") or row.HasField("weight")):
        raise InvalidRequestError("a quota without numbers; give devices, weight, or both")
    before = before or Quota()
    try:
        if user != DEFAULT:
            check_user_name(user)
        after = Quota(
            row.devices if row.HasField("devices") else before.devices,
            row.weight if row.HasField("weight") else before.weight,
        )
    except ConfigError as error:
        raise InvalidRequestError(str(error)) from None
    return [] if after == before else [QuotaChanged(user, after.devices, after.weight, now_s)]


def check_quotas(
    quotas: Quotas, new: Collection[str], jobs: Sequence[SubmittedJob], needs: PolicyNeeds
) -> None:
    """Raise InvalidJobError if a new job needs more devices than its user may ever hold."""
    for one in jobs:
        job = one.job
        if job.job_id in new and (
            why := why_never(job, least_milli(job, needs.allocation), quotas)
        ):
            raise InvalidJobError(f"job {job.job_id!r}: {why}")


def quotas_response(shares: UserShares, now_s: float, *, is_fair: bool) -> pb.QuotasResponse:
    """Return all quotas, what users hold, and what they have used."""
    quotas, use = shares.quotas, shares.use
    users = sorted({*quotas.of_user, *use.users} - {DEFAULT})
    return pb.QuotasResponse(
        default_quota=_quota_message(quotas, DEFAULT),
        users=[
            pb.UserStatus(
                quota=_quota_message(quotas, user),
                held_devices=use.held_milli(user) / FULL_DEVICE_MILLI,
                used_device_s=use.at(user, now_s),
            )
            for user in users
        ],
        half_life_s=use.half_life_s,
        fair_share=is_fair,
    )


def _quota_message(quotas: Quotas, user: str) -> pb.Quota:
    found = quotas.of_user.get(user, Quota())
    return pb.Quota(user=user, devices=found.devices, weight=found.weight)
