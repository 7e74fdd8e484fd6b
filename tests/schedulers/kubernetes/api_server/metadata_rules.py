"""Validation of metadata, and of times in leases and events."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tests.schedulers.kubernetes.api_server.resources import EVENTS, LEASES, Resource
from tests.schedulers.kubernetes.api_server.statuses import (
    ApiError,
    Cause,
    Json,
    forbidden_field,
    invalid_field,
    required_field,
)

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED_NAME = re.compile(
    rf"({SUBDOMAIN.pattern}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
# metav1.MicroTime is read by Go's layout 2006-01-02T15:04:05.000000Z07:00: six digits and a zone,
# neither more nor less. (A Python datetime of a whole second, or without a zone, is refused.)
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
MICRO_TIMES = {LEASES: ("acquireTime", "renewTime"), EVENTS: ("eventTime",)}


def metadata_causes(metadata: Json) -> list[Cause]:
    causes = []
    name = metadata["name"]
    if len(name) > 253 or not SUBDOMAIN.fullmatch(name):
        causes.append(invalid_field("metadata.name", f"{name!r} is no RFC 1123 subdomain"))
    causes += label_causes("metadata.labels", metadata.get("labels") or {})
    for key in metadata.get("annotations") or {}:
        if not QUALIFIED_NAME.fullmatch(key.lower()):
            causes.append(invalid_field("metadata.annotations", f"{key!r} is not a qualified name"))
    causes += [
        required_field(f"metadata.ownerReferences[{index}].{field}", "must not be empty")
        for index, owner in enumerate(metadata.get("ownerReferences") or [])
        for field in ("apiVersion", "kind", "name", "uid")
        if not owner.get(field)
    ]
    return causes


def label_causes(path: str, labels: Json) -> list[Cause]:
    causes = []
    for key, value in labels.items():
        if not QUALIFIED_NAME.fullmatch(key):
            causes.append(invalid_field(path, f"{key!r} is not a qualified name"))
        if not isinstance(value, str):
            raise ApiError(400, f"cannot unmarshal {value!r} into Go struct field of type string")
        if not LABEL_VALUE.fullmatch(value):
            causes.append(invalid_field(path, f"{value!r} is no label value"))
    return causes


def with_micro_times(resource: Resource, candidate: Json) -> Json:
    """Return the object with its times in UTC, as the server returns them."""
    part = "spec" if resource is LEASES else ""
    fields = candidate.get(part) if part else candidate
    if not fields:
        return candidate
    changed = {}
    for key in MICRO_TIMES.get(resource, ()):
        if fields.get(key):
            if not MICRO_TIME.fullmatch(fields[key]):
                raise ApiError(
                    400, f'parsing time "{fields[key]}" as "2006-01-02T15:04:05.000000Z07:00"'
                )
            in_utc = datetime.fromisoformat(fields[key]).astimezone(UTC)
            changed[key] = in_utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {**candidate, part: {**fields, **changed}} if part else {**fields, **changed}


def lease_causes(lease: Json) -> list[Cause]:
    """ValidateLeaseSpec of pkg/apis/coordination/validation."""
    spec = lease.get("spec") or {}
    causes = []
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        causes.append(invalid_field("spec.leaseDurationSeconds", "must be greater than 0"))
    if (spec.get("leaseTransitions") or 0) < 0:
        causes.append(invalid_field("spec.leaseTransitions", "must not be negative"))
    return causes


def event_causes(event: Json) -> list[Cause]:
    """Check that an event has its object's namespace, or `default` if the object has none."""
    involved = event.get("involvedObject") or {}
    if (involved.get("namespace") or "default") != event["metadata"]["namespace"]:
        return [invalid_field("involvedObject.namespace", "does not match event.namespace")]
    return []


def update_causes(new: Json, old: Json) -> list[Cause]:
    added = set(new.get("finalizers") or []) - set(old.get("finalizers") or [])
    if old.get("deletionTimestamp") and added:
        message = f"no new finalizers can be added if the object is being deleted, found {added}"
        return [forbidden_field("metadata.finalizers", message)]
    return []
