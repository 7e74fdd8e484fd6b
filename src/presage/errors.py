"""Errors that a user can fix: each message says what is wrong, where, and what to do.

``assert`` is for what cannot happen and ``ValueError`` for a wrong argument in code; these
classes are for files, configuration and requests. Servicers and the command line map them, by
class, to a gRPC status or an exit code.
"""

from __future__ import annotations

from typing import TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)


class PresageError(Exception):
    """Base of all errors of Presage."""


class TableError(PresageError):
    """A table does not match its schema."""


class GraphError(PresageError):
    """A model's operator graph cannot be read."""


class InvalidJobError(PresageError):
    """A job, device, share or co-location in a request is not one that can exist."""


class ConfigError(PresageError):
    """A configuration file is missing, or a key of it is unknown, missing or invalid."""


class UnknownDeviceError(PresageError):
    """No device of that kind is in the catalogue or in the release."""


class ProfilingError(PresageError):
    """A requested measurement cannot be made on this machine."""


class TrainingError(PresageError):
    """The tables do not hold what a predictor needs to be trained or calibrated."""


class ReleaseError(PresageError):
    """A release folder is corrupt, incomplete or of another schema."""


class ForeignReleaseError(ReleaseError):
    """A release of another format or feature schema, whose manifest is valid."""


class RefusedReleaseError(PresageError):
    """A new release is rejected; the server continues with the current one."""


class RegistryError(PresageError):
    """The model registry cannot be reached, or does not contain what was requested."""


class ServiceError(PresageError):
    """The prediction service cannot start or be reached; retry after ``retry_after_s``, if set."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class MissingMethodError(ServiceError):
    """The prediction service is of a version without the called method."""


class InvalidRequestError(PresageError):
    """A request cannot be parsed, or is larger than the limit."""


class StaleSchemaError(PresageError):
    """Feature rows were computed for another version of the features than the release's."""


class ExpiredError(PresageError):
    """The deadline of the request has passed."""


class OverloadedError(PresageError):
    """The server is overloaded; retry after ``retry_after_s``."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnauthenticatedError(PresageError):
    """A client has no credentials, or unknown ones."""


class ForbiddenError(PresageError):
    """A client lacks the role for this request."""


class OutcomeLogError(PresageError):
    """The outcome log cannot be opened, read or written."""


class InvalidTensorError(PresageError):
    """A tensor of an inference request has an invalid name, type, shape or value."""


class UnknownModelError(PresageError):
    """No model of that name or version is served."""


class UnknownJobError(PresageError):
    """No job or node of that name is known to the cluster."""


class NotYetError(PresageError):
    """The requested state does not exist yet; the client can retry."""


class RefusedAgentError(PresageError):
    """A node agent is rejected: another one has its node's name."""


class JournalError(PresageError):
    """The controller's journal cannot be opened, read or written; no part of the write is saved."""


class UnsureJournalError(JournalError):
    """The result of a commit was lost: only reopening the journal shows whether it is saved."""


class ImpossibleActionError(PresageError):
    """An action of a policy is invalid: it exceeds a device, or changes a job that has ended."""


class ElasticError(PresageError):
    """An elastic job cannot start, continue or change its number of workers."""


class TaskFolderError(PresageError):
    """A task's folder on a node cannot be made, written or removed, or has no shim."""


def without_frames(error: AnyError) -> AnyError:
    """Return the same error without the frames of its traceback.

    Frames refer to their local variables. If one of these is the error, the cycle keeps a whole
    request in memory until the garbage collector runs.
    """
    around: BaseException | None = error
    while around is not None:
        around.__traceback__ = None
        around = around.__context__
    return error


_MOST_WORD, _MOST_TEXT = 200, 800  # characters


def one_line(message: object) -> str:
    """Return a message as one line of at most about ``_MOST_TEXT`` characters.

    The middle of long words, and of what is still too long, is left out: a path ends with the name
    of its file.
    """
    words = str(message).split()
    return _shortened(" ".join(_shortened(word, _MOST_WORD) for word in words), _MOST_TEXT)


def _shortened(text: str, most: int) -> str:
    """Return a text without its middle, if it has more characters than that."""
    if len(text) <= most:
        return text
    separator = " ... " if " " in text else "..."
    return f"{text[: most // 2]}{separator}{text[-(most // 2) :]}"
