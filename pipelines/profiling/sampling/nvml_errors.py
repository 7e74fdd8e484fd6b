"""What each of NVML's errors means to a measurement: the one place that tells them apart."""

from __future__ import annotations

from enum import Enum

import pynvml


class Verdict(Enum):
    """What to do when NVML does not answer a question."""

    GONE = "the GPU or its driver is lost: the campaign ends"
    UNSUPPORTED = "this GPU never answers it: the value is None"
    FORBIDDEN = "this user may not ask it: the value is None, and a warning says so"
    EMPTY = "there is nothing to tell: no sample yet, no process"
    PASSING = "it may answer the next time"
    SUSPECT = "anything from a lost GPU to a question that a sandbox does not know"


VERDICTS = {
    pynvml.NVML_ERROR_UNINITIALIZED: Verdict.GONE,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Verdict.GONE,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Verdict.GONE,
    pynvml.NVML_ERROR_GPU_IS_LOST: Verdict.GONE,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Verdict.GONE,
    pynvml.NVML_ERROR_RESET_REQUIRED: Verdict.GONE,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Verdict.GONE,  # the driver was updated meanwhile
    pynvml.NVML_ERROR_NOT_SUPPORTED: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: Verdict.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Verdict.FORBIDDEN,
    pynvml.NVML_SUCCESS: Verdict.EMPTY,  # nvidia-ml-py raises it where a list is empty
    pynvml.NVML_ERROR_NOT_FOUND: Verdict.EMPTY,
    pynvml.NVML_ERROR_NO_DATA: Verdict.EMPTY,
    pynvml.NVML_ERROR_TIMEOUT: Verdict.PASSING,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Verdict.PASSING,  # of this argument alone
    pynvml.NVML_ERROR_INSUFFICIENT_SIZE: Verdict.PASSING,  # a list that grew between two calls
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: Verdict.PASSING,
    pynvml.NVML_ERROR_MEMORY: Verdict.PASSING,
    pynvml.NVML_ERROR_IN_USE: Verdict.PASSING,
    pynvml.NVML_ERROR_NOT_READY: Verdict.PASSING,
}


def verdict(error: Exception) -> Verdict:
    """What an ``NVMLError`` means; of a code that is not in the table, SUSPECT."""
    return VERDICTS.get(getattr(error, "value", None), Verdict.SUSPECT)


def lost(error: Exception) -> str:
    """Message for when the driver is gone."""
    return (
        f"NVML: {error}; see `dmesg` for an Xid. The tables hold everything up to then: "
        "run the same command again when `nvidia-smi` works"
    )
