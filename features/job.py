"""A training job as every part of Presage sees it before it runs."""

from __future__ import annotations

from dataclasses import dataclass

from presage.features.errors import InvalidJobError
from presage.features.op_stats import MAX_COUNT, OpStats

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
MEMORY_FORMATS = ("contiguous", "channels-last")


@dataclass(frozen=True, slots=True)
class Job:
    """A deep-learning job: what runs, how large, how long (requirement F2).

    ``input_elements`` counts the elements of one sample; ``graph_digest`` names the
    :class:`~presage.features.graph.OpGraph` at this batch size, "" when it is not known.
    ``memory_format`` is one of ``MEMORY_FORMATS``, images' layout; ``loads_data`` is whether a
    step fetches its samples, from disk or host memory.
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

    def __post_init__(self) -> None:
        for field in ("batch_size", "iterations", "input_elements"):
            value = getattr(self, field)
            if value < 1:
                raise InvalidJobError(
                    f"job {self.job_id!r}: {field}={value}, must be >= 1; "
                    f"give the job's real {field.replace('_', ' ')}"
                )
            _check_size(self.job_id, field, value)
        for field, known in (("precision", PRECISIONS), ("memory_format", MEMORY_FORMATS)):
            value = getattr(self, field)
            if value not in known:
                raise InvalidJobError(
                    f"job {self.job_id!r}: {field.replace('_', ' ')} {value!r} is not known; "
                    f"use one of {', '.join(known)}"
                )


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """A job and the statistics of its operators: all a predictor may know of it.

    It is what travels to the prediction service, so that clients need no change when the
    models do.

    Attributes
    ----------
    op_stats : tuple of OpStats
        One row per (kind, phase, intensity octave); at least one.
    parameters : int
        Distinct trainable elements.
    peak_live_bytes : int
        Most bytes of tensors alive at once in a training step, parameters, gradients and
        optimizer state included; allocator and device context are not.
    """

    job: Job
    op_stats: tuple[OpStats, ...]
    parameters: int
    peak_live_bytes: int

    def __post_init__(self) -> None:
        if not self.op_stats:
            raise InvalidJobError(
                f"job {self.job.job_id!r}: no operator statistics; "
                "extract them with `presage features` from the model's module or ONNX file"
            )
        for field in ("parameters", "peak_live_bytes"):
            value = getattr(self, field)
            if value < 0:
                raise InvalidJobError(f"job {self.job.job_id!r}: {field}={value}, must be >= 0")
            _check_size(self.job.job_id, field, value)


def _check_size(job_id: str, field: str, value: int) -> None:
    if value > MAX_COUNT:
        raise InvalidJobError(
            f"job {job_id!r}: {field} has {value.bit_length()} bits, must be below 2**63; "
            f"give the job's real {field.replace('_', ' ')}"
        )
