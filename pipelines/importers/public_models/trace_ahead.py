"""Parallel tracing of the graphs that an import needs, on all cores."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from presage.features.device.device import usable_cores
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.system.processes.child_process import die_with_parent

# Fewer graphs are traced faster than a separate process imports torch.
WORTH_PROCESSES = 16

Make = Callable[[], OpGraph]


class MissingGraphs(GraphCache):
    """Records requested graphs that are not cached, and returns none.

    Attributes
    ----------
    missing : dict of str to callable
        Function that makes each graph, by recipe.
    """

    def __init__(self, graphs: GraphCache) -> None:
        super().__init__(graphs.folder)
        self.missing: dict[str, Make] = {}

    def graph(self, recipe: str, make: Make) -> OpGraph | None:
        """Return None."""
        if not self.has(recipe):
            self.missing[recipe] = make
        return None


def trace_ahead(requested: MissingGraphs, graphs: GraphCache) -> None:
    """Trace missing graphs into the cache; a few graphs are left to their later request."""
    missing = requested.missing
    workers = min(usable_cores(), len(missing) // WORTH_PROCESSES)
    if workers < 2:
        return
    folder = graphs.folder
    # Not forked: a copy of a process whose other threads hold locks would deadlock.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (os.getpid(),))
    try:
        traced = [pool.submit(_trace, folder, recipe, make) for recipe, make in missing.items()]
        for one in as_completed(traced):
            graphs.notify(one.result())
    except BrokenProcessPool:  # a script without `if __name__ == "__main__"`, or no memory
        return  # graphs are traced on request
    finally:
        # Not with `with`: it would shut down again, which undoes the cancellation here.
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent_pid: int) -> None:
    """Ignore interrupts, which end the parent, and die with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        die_with_parent(parent_pid)


def _trace(folder: Path, recipe: str, make: Make) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GraphCache(folder).graph(recipe, make)
    return recipe
