"""Independent tasks of a pipeline stage: in processes, or on the nodes of a Ray cluster.

A stage uses the cluster that ``PRESAGE_RAY`` names. It is no parameter of a stage, so that DVC does
not run a stage again on another cluster: the results do not depend on where the tasks run.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, TypeVar

from presage.errors import ConfigError
from presage.system.processes.ray_connection import RayConnectionError, ray_connection

ADDRESS_VARIABLE = "PRESAGE_RAY"
MOST_PROCESSES = 4  # each imports what the tasks need: for training, 0.4 GiB

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    run: Callable[..., Result],
    items: Sequence[Item],
    *,
    shared: tuple[Any, ...] = (),
    is_long: bool = False,
) -> Iterator[Result]:
    """Return the results of ``run(*shared, item)`` of each item, in the order of the items.

    On a cluster each task has a processor, ``shared`` is sent to every node once, and a task of a
    lost node runs again on another one. Without a cluster, long tasks run in at most
    ``MOST_PROCESSES`` processes, and others in this process when their results are read. Tasks in
    other processes begin now. ``run`` is a function of a module.

    Parameters
    ----------
    is_long : bool
        Whether the tasks take longer in all than processes take to start, which is seconds.

    Raises
    ------
    ConfigError
        There is no cluster at the address, or its nodes cannot run the tasks.
    PresageError
        As ``run`` raises it.
    """
    ray = _cluster()
    if ray is not None:
        task = ray.remote(num_cpus=1)(run)
        sent = [ray.put(value) for value in shared]
        return _results(ray, [task.remote(*sent, item) for item in items])
    if is_long and len(items) > 1:
        return _in_processes(run, items, shared)
    return (run(*shared, item) for item in items)


def _results(ray: Any, pending: Sequence[Any]) -> Iterator[Any]:
    for one in pending:
        try:
            yield ray.get(one)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise ConfigError(
                f"{ADDRESS_VARIABLE}: a task cannot run on the cluster ({_first_line(error)}); "
                "install this version of Presage on every node"
            ) from error


def _in_processes(
    run: Callable[..., Any], items: Sequence[Any], shared: tuple[Any, ...]
) -> Iterator[Any]:
    """Begin the tasks in processes, which share large arrays by memory maps."""
    import joblib

    processes = min(joblib.cpu_count(), MOST_PROCESSES, len(items))
    pool = joblib.Parallel(n_jobs=processes, return_as="generator")
    found: Iterator[Any] = pool(joblib.delayed(run)(*shared, item) for item in items)
    return found


@cache
def _cluster() -> Any:
    """Return the module ``ray``, connected until this process ends; None without an address."""
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return None
    try:
        return _CONNECTION.enter_context(ray_connection(address))
    except (RayConnectionError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"{ADDRESS_VARIABLE}={address}: no Ray cluster there ({error}); start one with "
            "`ray start --head`, or unset the variable"
        ) from error


_CONNECTION = ExitStack()
atexit.register(_CONNECTION.close)  # before modules that Ray needs are gone


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
