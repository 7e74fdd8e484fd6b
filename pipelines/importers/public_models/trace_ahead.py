"""Graphs that an import is going to ask for, traced beforehand on all cores."""

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
from presage.system.child_process import die_with_parent

# Fewer are traced before a process of its own has imported torch.
WORTH_PROCESSES = 16

Make = Callable[[], OpGraph]


class Wanted(GraphCache):
    """Remembers what is asked for and not there yet; answers nothing.

    Attributes
    ----------
    missing : dict of str to callable
        What makes each graph, by its recipe.
    """

    def __init__(self, graphs: GraphCache) -> None:
        super().__init__(graphs.folder)
        self.missing: dict[str, Make] = {}

    def graph(self, recipe: str, make: Make) -> OpGraph | None:
        """None."""
        if not self.has(recipe):
            self.missing[recipe] = make
        return None


def trace_ahead(wanted: Wanted, graphs: GraphCache) -> None:
    """Trace what is missing into the cache; a few graphs are left to whoever asks for them."""
    missing = wanted.missing
    workers = min(usable_cores(), len(missing) // WORTH_PROCESSES)
    if workers < 2:
        return
    folder = graphs.folder
    # Not forked: a copy of a process whose other threads hold locks waits for them for ever.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin, (os.getpid(),))
    try:
        traced = [pool.submit(_trace, folder, recipe, make) for recipe, make in missing.items()]
        for one in as_completed(traced):
            graphs.tell(one.result())
    except BrokenProcessPool:  # a script without `if __name__ == "__main__"`, or no memory
        return  # who asks for a graph traces it
    finally:
        # Not by `with`: it shuts down once more, and that call takes back what is cancelled here.
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(parent_pid: int) -> None:
    """Whoever waits for the pool ends it when interrupted, and takes it along when killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        die_with_parent(parent_pid)


def _trace(folder: Path, recipe: str, make: Make) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GraphCache(folder).graph(recipe, make)
    return recipe
