"""Independent tasks of a pipeline stage: in processes, or on the nodes of a Ray cluster.

A stage uses the cluster that ``PRESAGE_RAY`` names. It is no parameter of a stage, so that DVC does
not run a stage again on another cluster: the results do not depend on where the tasks run.
"""

from __future__ import annotations

import atexit
import os
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, TypeVar

from presage.errors import ConfigError
from presage.system.processes.child_process import die_with_parent
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
) -> Generator[Result]:
    """Return the results of ``run(*shared, item)`` of each item, in the order of the items.

    On a cluster each task has a processor, ``shared`` is sent to every node once, and a task of a
    lost node runs again on another one. Without a cluster, long tasks run in as many processes as
    there are processors, at most ``MOST_PROCESSES``. Tasks in other processes start when this
    function is called; others run in this process when their results are read. Close the generator
    where not all results may be read, so that no process is left. ``run`` is a function of a
    module.

    Parameters
    ----------
    is_long : bool
        Whether the tasks take longer in all than processes take to start, which is seconds.

    Raises
    ------
    ConfigError
        There is no cluster at the address, its nodes cannot run the tasks, or a process was killed.
    PresageError
        As ``run`` raises it.
    """
    ray = _cluster()
    if ray is not None:
        task = ray.remote(num_cpus=1)(run)
        references = [ray.put(value) for value in shared]
        return _cluster_results(ray, [task.remote(*references, item) for item in items])
    processes = _processes(len(items)) if is_long else 1
    if processes > 1:
        results = _process_results(run, items, shared, processes)
        next(results)  # starts the tasks
        return results
    return (run(*shared, item) for item in items)


def _cluster_results(ray: Any, pending: Sequence[Any]) -> Generator[Any]:
    for reference in pending:
        try:
            yield ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise ConfigError(
                f"{ADDRESS_VARIABLE}: a task cannot run on the cluster ({_first_line(error)}); "
                "install this version of Presage on every node"
            ) from error


def _processes(tasks: int) -> int:
    import joblib

    return min(int(joblib.cpu_count()), MOST_PROCESSES, tasks)


def _process_results(
    run: Callable[..., Any], items: Sequence[Any], shared: tuple[Any, ...], processes: int
) -> Generator[Any]:
    """Start the tasks and yield None, then yield their results.

    The processes share large arrays by memory maps. They end when this generator is closed, and
    when this process ends, however it does.
    """
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    with joblib.parallel_config("loky", initializer=die_with_parent, initargs=(os.getpid(),)):
        pool = joblib.Parallel(n_jobs=processes, return_as="generator")
        results = pool(joblib.delayed(run)(*shared, item) for item in items)
    try:
        yield None
        yield from results
    except TerminatedWorkerError:
        raise ConfigError(
            "a process was killed, perhaps for lack of memory; set LOKY_MAX_CPU_COUNT=1 to use one"
        ) from None
    finally:
        with warnings.catch_warnings():  # of tasks that are not finished
            warnings.simplefilter("ignore")
            results.close()


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
