"""Errors of the API server as `Status` objects."""

from __future__ import annotations

from typing import Any, NamedTuple

Json = dict[str, Any]

# StatusReason by code, from pkg/apis/meta/v1 of apimachinery; other codes have none.
REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Cause(NamedTuple):
    """Invalid field; ``reason`` is a CauseType such as FieldValueForbidden."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        prefixes = {
            "FieldValueForbidden": "Forbidden",
            "FieldValueRequired": "Required value",
            "FieldValueDuplicate": "Duplicate value",
        }
        return f"{self.field}: {prefixes.get(self.reason, 'Invalid value')}: {self.message}"


def forbidden_field(field: str, message: str) -> Cause:
    return Cause(field, "FieldValueForbidden", message)


def invalid_field(field: str, message: str) -> Cause:
    return Cause(field, "FieldValueInvalid", message)


def required_field(field: str, message: str) -> Cause:
    return Cause(field, "FieldValueRequired", message)


class ApiError(Exception):
    """Error response; ``reason`` defaults to that of the code."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = None,
        details: Json | None = None,
        retry_after_s: int | None = None,
        metadata: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s
        if retry_after_s is not None:
            details = {**(details or {}), "retryAfterSeconds": retry_after_s}
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            "reason": REASONS.get(code, "") if reason is None else reason,
            "code": code,
            **({"details": details} if details else {}),
        }


def not_found(plural: str, name: str) -> ApiError:
    details = {"name": name, "kind": plural}
    return ApiError(404, f'{plural} "{name}" not found', details=details)


def conflict(plural: str, name: str, message: str) -> ApiError:
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {plural} "{name}": {message}',
        details={"name": name, "kind": plural},
    )


def invalid(kind: str, name: str, causes: list[Cause]) -> ApiError:
    text = str(causes[0]) if len(causes) == 1 else f"[{', '.join(map(str, causes))}]"
    return ApiError(
        422,
        f'{kind} "{name}" is invalid: {text}',
        details={"name": name, "kind": kind, "causes": [cause._asdict() for cause in causes]},
    )


def success(**details: str) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": details} if details else {}),
    }
