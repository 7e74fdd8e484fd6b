"""Tracing of the operator graphs of zoo jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from presage.errors import GraphError
from presage.features.device.device import usable_cores
from presage.features.from_torch.graph import trace_step
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo import JobConfig, build
from presage.system.processes.child_process import die_with_parent

# A process takes some seconds to import torch, so a few jobs are traced faster in this process.
MANY, MANY_CORES = 24, 4


def trace(config: JobConfig) -> OpGraph:
    """Trace the operator graph of a zoo job on the meta device, without computing.

    Raises
    ------
    GraphError
        The job cannot be traced, or a user's function fails.
    ValueError
        The zoo has no such job.
    """
    with torch.device("meta"):
        step = _build_own(config) if config.is_user_model else build(config)
        return trace_step(step.run, step.modules, step.input_elements)


def _build_own(config: JobConfig) -> TrainingStep:
    try:
        return build(config)
    except GraphError as error:
        raise GraphError(f"{config.family}: {error}") from error
    except Exception as error:  # a user's code may raise anything
        first = str(error).strip().partition("\n")[0]
        raise GraphError(
            f"{config.family}: {type(error).__name__}: {first}; try `presage features "
            f"{config.family}`, which reports the location"
        ) from error


def trace_all(configs: Sequence[JobConfig]) -> Iterator[tuple[JobConfig, OpGraph | GraphError]]:
    """Yield every job with its graph or error; uses several processes if that is faster."""
    workers = min(usable_cores(), len(configs)) if len(configs) >= MANY else 1
    if workers < MANY_CORES:
        yield from zip(configs, map(_try, configs), strict=True)
        return
    with ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        initializer=die_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        yield from zip(configs, pool.map(_try, configs), strict=True)


def _try(config: JobConfig) -> OpGraph | GraphError:
    try:
        return trace(config)
    except GraphError as error:
        return error
