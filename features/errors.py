"""Errors a person can mend: each message says what is wrong, where, and what to do.

``assert`` is for what cannot happen and ``ValueError`` for a wrong argument in code; these
classes are for files, configuration and requests. Servicers and the command line map them, by
class, to a gRPC status or an exit code.
"""


class PresageError(Exception):
    """Base of every error that Presage raises on purpose."""


class TableError(PresageError):
    """A table has other columns, types or values than its schema says."""


class GraphError(PresageError):
    """A model's operator graph cannot be read."""


class InvalidJobError(PresageError):
    """A job, device, share or co-location in a request is not one that can exist."""


class ConfigError(PresageError):
    """A configuration file is missing, or a key of it is unknown, missing or of no use."""


class UnknownDeviceError(PresageError):
    """No device of that kind is in the catalogue or in the release."""


class ProfilingError(PresageError):
    """A measurement cannot be made on this machine as asked."""


class TrainingError(PresageError):
    """The tables do not hold what a predictor needs to be trained or calibrated."""


class ReleaseError(PresageError):
    """A release folder is damaged, incomplete or of another schema."""


class RegistryError(PresageError):
    """The model registry cannot be reached, or does not hold what was asked for."""


class ServiceError(PresageError):
    """The prediction service cannot start, or cannot be reached."""


class InvalidTensorError(PresageError):
    """A tensor in a request has another name, type, shape, size or content than the model takes."""


class UnknownModelError(PresageError):
    """No model of that name, or no such version of it, is served."""
