"""Options that describe a job by its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.options.job_source import BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION

if TYPE_CHECKING:
    from presage.features.job.job_description import JobFeatures

JOB_FORMATS = (
    "ONNX file, TensorFlow graph (.pb, .pbtxt, .meta or a SavedModel folder), JSON file of job "
    "features, module:function that returns a torch module and example inputs, or job of the "
    "profiler's zoo, such as llm_decode/8b-c4096/b8/inference/bf16."
)
Iterations = Annotated[
    int | None,
    typer.Option(
        min=1, show_default=f"{ITERATIONS}, or those of a JSON job", help="Training steps."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is trained. None means "not given": a JSON job has its own and rejects others."""

    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=str(BATCH_SIZE), help="Samples per step. Not for a JSON job."
        ),
    ] = None
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", show_default=OPTIMIZER, help="sgd, adam or adamw. Not for a JSON job."
        ),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=PRECISION,
            help="fp32, tf32, fp16, bf16 or fp64. Not for a JSON job.",
        ),
    ] = None
    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Size of a symbolic dimension. For ONNX the name is the dimension's name or "
            "position, for TensorFlow PLACEHOLDER:AXIS. Repeat for several dimensions.",
        ),
    ] = None

    def read(self, source: str, iterations: int | None) -> JobFeatures:
        """Return the features of a job."""
        from presage.cli.options.job_source import read_job

        return read_job(
            source,
            batch_size=self.batch_size,
            iterations=iterations,
            optimizer=self.optimizer,
            precision=self.precision,
            dims=self.dim,
        )
