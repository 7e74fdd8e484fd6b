"""Classification of NVML's errors by their consequence for a measurement."""

from __future__ import annotations

from enum import Enum

import pynvml


class Verdict(Enum):
    """Consequence of a failed NVML query."""

    GONE = "the GPU or its driver is lost: the campaign ends"
    UNSUPPORTED = "this GPU does not support the query: the value is None"
    FORBIDDEN = "this user lacks permission: the value is None, and a warning is logged"
    EMPTY = "there is no value: no sample yet, or no process"
    PASSING = "the query may succeed the next time"
    SUSPECT = "the GPU may be lost, or a sandbox does not support the query"


VERDICTS = {
    pynvml.NVML_ERROR_UNINITIALIZED: Verdict.GONE,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Verdict.GONE,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Verdict.GONE,
    pynvml.NVML_ERROR_GPU_IS_LOST: Verdict.GONE,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Verdict.GONE,
    pynvml.NVML_ERROR_RESET_REQUIRED: Verdict.GONE,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Verdict.GONE,  # after a driver update
    pynvml.NVML_ERROR_NOT_SUPPORTED: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Verdict.FORBIDDEN,
    pynvml.NVML_SUCCESS: Verdict.EMPTY,  # nvidia-ml-py raises it for an empty list
    pynvml.NVML_ERROR_NOT_FOUND: Verdict.EMPTY,
    pynvml.NVML_ERROR_NO_DATA: Verdict.EMPTY,
    pynvml.NVML_ERROR_TIMEOUT: Verdict.PASSING,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Verdict.PASSING,  # concerns this argument only
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: Verdict.PASSING,  # a list that grew between two calls
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: Verdict.PASSING,
    pynvml.NVML_ERROR_MEMORY: Verdict.PASSING,
    pynvml.NVML_ERROR_IN_USE: Verdict.PASSING,
    pynvml.NVML_ERROR_NOT_READY: Verdict.PASSING,
}


def verdict(error: Exception) -> Verdict:
    """Return the consequence of an ``NVMLError``; SUSPECT for codes that are not in the table."""
    return VERDICTS.get(getattr(error, "value", None), Verdict.SUSPECT)


def lost(error: Exception) -> str:
    """Return the message for a lost driver."""
    return (
        f"NVML: {error}; see `dmesg` for an Xid. The tables hold all results so far: "
        "run the same command again when `nvidia-smi` works"
    )
