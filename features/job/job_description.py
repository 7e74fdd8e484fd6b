"""Training job as seen before it runs: its description and operator statistics."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

from presage.errors import InvalidJobError
from presage.features.graph.op_graph import MAX_COUNT
from presage.features.graph.op_stats import OpStats
from presage.features.graph.step_memory import MEMORY_COMPONENTS, MemoryEstimate, peak_bytes

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
MEMORY_FORMATS = ("contiguous", "channels-last")
FP32_BYTES = 4
_VERSION = re.compile(r"[0-9]+\.[0-9]+")  # prefix of a version


@dataclass(frozen=True, slots=True)
class Job:
    """A deep-learning job: its model, size and length (requirement F2).

    ``input_elements`` counts the elements of one sample. ``graph_digest`` identifies the
    :class:`~presage.features.graph.op_graph.OpGraph` at this batch size; "" if it is unknown.
    ``memory_format``, one of ``MEMORY_FORMATS``, is the layout of images. ``loads_data`` is true
    if a step loads its samples from disk or host memory. ``framework_version`` is for example
    "2.13.0"; "" if it is unknown.
    """

    job_id: str
    name: str
    family: str
    framework: str
    precision: str
    batch_size: int
    iterations: int
    input_elements: int
    graph_digest: str = ""
    memory_format: str = MEMORY_FORMATS[0]
    loads_data: bool = False
    framework_version: str = ""

    def __post_init__(self) -> None:
        check_sizes(self)
        for field, allowed in (("precision", PRECISIONS), ("memory_format", MEMORY_FORMATS)):
            value = getattr(self, field)
            if value not in allowed:
                raise InvalidJobError(
                    f"job {self.job_id!r}: {field.replace('_', ' ')} {value!r} is not known; "
                    f"use one of {', '.join(allowed)}"
                )
        if self.framework_version and not _VERSION.match(self.framework_version):
            raise InvalidJobError(
                f"job {self.job_id!r}: framework_version={self.framework_version!r}, must begin "
                "with two numbers, as in 2.13.0; give '' if it is unknown"
            )


@dataclass(frozen=True, slots=True, weakref_slot=True)
class JobFeatures:
    """A job and the statistics of its operators: the complete input of a predictor.

    This is what clients send to the prediction service, so clients need no change when the
    models change.

    Attributes
    ----------
    op_stats : tuple of OpStats
        One row per (kind, phase, intensity octave, shape class); at least one.
    parameters : int
        Distinct trainable elements.
    memory : MemoryEstimate
        Memory components of a step, without allocator overhead and device context.
    """

    job: Job
    op_stats: tuple[OpStats, ...]
    parameters: int
    memory: MemoryEstimate

    def __post_init__(self) -> None:
        check_footprint(self.job.job_id, len(self.op_stats), self.parameters, astuple(self.memory))

    @property
    def trains(self) -> bool:
        """Whether a step has a backward pass."""
        return any(row.phase == "backward" for row in self.op_stats)

    @property
    def peak_live_bytes(self) -> int:
        """Maximum bytes of tensors alive at once in a step: the peak of ``memory``."""
        return self.memory.peak_bytes


def check_sizes(job: Any) -> None:
    """Check batch size, iterations and input elements of a job, the domain's or the protocol's.

    Raises
    ------
    InvalidJobError
        One is below 1 or not below 2**63.
    """
    if (
        1 <= job.batch_size <= MAX_COUNT
        and 1 <= job.iterations <= MAX_COUNT
        and 1 <= job.input_elements <= MAX_COUNT
    ):
        return  # every request has to be checked; the rest only words an error
    for field in ("batch_size", "iterations", "input_elements"):
        value = getattr(job, field)
        if value < 1:
            raise InvalidJobError(
                f"job {job.job_id!r}: {field}={value}, must be >= 1; "
                f"give the job's real {field.replace('_', ' ')}"
            )
        _check_size(job.job_id, field, value)


def check_footprint(
    job_id: str, op_rows: int, parameters: int, component_bytes: tuple[int, ...]
) -> None:
    """Check how much of a device a job takes up.

    Parameters
    ----------
    op_rows : int
        Rows of operator statistics.
    parameters : int
        Distinct trainable elements.
    component_bytes : tuple of int
        Bytes of a step, in the order of ``MEMORY_COMPONENTS``.

    Raises
    ------
    InvalidJobError
        There is no row, ``parameters`` is negative, or a number is not below 2**63.
    """
    if not op_rows:
        raise InvalidJobError(
            f"job {job_id!r}: no operator statistics; "
            "extract them with `presage features` from the model's module or ONNX file"
        )
    if parameters < 0:
        raise InvalidJobError(f"job {job_id!r}: parameters={parameters}, must be >= 0")
    peak = peak_bytes(*component_bytes)
    if parameters <= MAX_COUNT and peak <= MAX_COUNT:  # no part of a peak is larger than it
        return
    _check_size(job_id, "parameters", parameters)
    for name, value in zip(MEMORY_COMPONENTS, component_bytes, strict=True):
        _check_size(job_id, f"memory.{name}", value)
    _check_size(job_id, "peak_live_bytes", peak)


def memory_from_peak(parameters: int, peak_live_bytes: int) -> MemoryEstimate:
    """Split a peak into components if only the peak is known: fp32 weights, and workspace.

    Raises
    ------
    InvalidJobError
        An argument is negative.
    """
    for field, value in (("parameters", parameters), ("peak_live_bytes", peak_live_bytes)):
        if value < 0:
            raise InvalidJobError(f"{field}={value}, must be >= 0")
    weights = min(FP32_BYTES * parameters, peak_live_bytes)
    return MemoryEstimate(
        parameter_bytes=weights,
        gradient_bytes=0,
        optimizer_state_bytes=0,
        activation_bytes=0,
        workspace_bytes=peak_live_bytes - weights,
        batch_bytes=0,
    )


@lru_cache(maxsize=256)
def public_version(text: str) -> str:
    """Return a version without its local part ("2.13.0+cpu" is "2.13.0"); "" if it is invalid."""
    return text.partition("+")[0] if _VERSION.match(text) else ""


def _check_size(job_id: str, field: str, value: int) -> None:
    if value > MAX_COUNT:
        noun = field.rpartition(".")[2].replace("_", " ")
        raise InvalidJobError(
            f"job {job_id!r}: {field} has {value.bit_length()} bits, must be below 2**63; "
            f"give the job's real {noun}"
        )
