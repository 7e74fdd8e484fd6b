"""Cache of the operator graphs of public models, by the digest of their recipe."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from presage import features
from presage.errors import GraphError
from presage.features.from_torch.graph import trace_step
from presage.features.graph.op_graph import OpGraph, OpNode
from presage.features.graph.step_memory import MemoryEstimate
from presage.pipelines.profiling import zoo
from presage.pipelines.profiling.graph_tracing import trace
from presage.pipelines.profiling.running import training_step
from presage.pipelines.profiling.zoo import JobConfig
from presage.pipelines.profiling.zoo.precision import apply_precision
from presage.system.files.atomic_file import write_atomically


class GraphCache:
    """Graphs by recipe, on disk.

    A recipe is a text that, together with the tracing code, determines the graph: a zoo job by its
    name, a model of a library by the library's version, its name and sizes.

    Parameters
    ----------
    folder : Path, optional
        Default: :func:`default_folder`.
    on_trace : callable, optional
        Called with the recipe of each missing graph before it is traced, which takes seconds.
    """

    def __init__(
        self, folder: Path | None = None, *, on_trace: Callable[[str], None] | None = None
    ) -> None:
        self.folder = folder or default_folder()
        self._on_trace = on_trace

    def has(self, recipe: str) -> bool:
        """Return whether the graph, or the fact that it cannot be traced, is cached."""
        return self._path(recipe).is_file()

    def notify(self, recipe: str) -> None:
        """Report that a graph is being traced."""
        if self._on_trace is not None:
            self._on_trace(recipe)

    def graph(self, recipe: str, make: Callable[[], OpGraph]) -> OpGraph | None:
        """Return the graph of ``recipe``, cached or by ``make``; None if it cannot be traced."""
        path = self._path(recipe)
        try:
            return _from_json(json.loads(gzip.decompress(path.read_bytes())))
        except (OSError, EOFError, ValueError, KeyError, TypeError):
            pass  # missing or corrupt: it is rebuilt
        self.notify(recipe)
        try:
            made: OpGraph | None = make()
        except GraphError:
            made = None  # failures are cached, too
        content = gzip.compress(json.dumps(_to_json(made)).encode(), mtime=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write_bytes(content))
        return made

    def zoo_graph(
        self, config: JobConfig, sizes: Mapping[str, int] | None = None
    ) -> OpGraph | None:
        """Return the graph of a zoo job; None if there is no such job, or no graph.

        With ``sizes``, the family is built with these instead of its variant's.
        """
        given = "" if sizes is None else json.dumps(sizes, sort_keys=True, separators=(",", ":"))
        recipe = f"zoo {self._zoo} {given} {config.name}"
        make = partial(trace, config) if sizes is None else partial(_trace_sized, config, sizes)
        try:
            return self.graph(recipe, make)
        except ValueError:  # not cached: a later zoo may have it
            return None

    def missing_reason(self, otherwise: str) -> str:
        """Return the reason why there is no graph, by default the caller's."""
        return otherwise

    def _path(self, recipe: str) -> Path:
        key = hashlib.sha256(f"{self._tracer} {recipe}".encode()).hexdigest()[:32]
        return self.folder / f"{key}.json.gz"

    @cached_property
    def _tracer(self) -> str:
        folder = Path(features.__path__[0])
        named = ("op_graph.py", "step_memory.py", "op_kinds.py")
        tracer = (folder / "from_torch").glob("*.py")
        return _digest([*(folder / "graph" / name for name in named), *tracer])

    @cached_property
    def _zoo(self) -> str:
        return _digest([Path(training_step.__file__), *Path(zoo.__path__[0]).rglob("*.py")])


class NoGraphs(GraphCache):
    """Cache without tracing: rows only, for a quick import."""

    def graph(self, recipe: str, make: Callable[[], OpGraph]) -> OpGraph | None:
        """Return None."""
        return None

    def missing_reason(self, otherwise: str) -> str:
        """Return the reason: graphs are disabled."""
        return "graphs were not wanted"


def _trace_sized(config: JobConfig, sizes: Mapping[str, int]) -> OpGraph:
    family = zoo.FAMILIES[config.family]
    with torch.device("meta"):
        step = family.build(batch_size=config.batch_size, optimizer=config.optimizer, **sizes)
        for module in step.modules:
            apply_precision(module, config.precision)
        return trace_step(step.run, step.modules, step.input_elements)


def default_folder() -> Path:
    """Return a folder in the user's cache, which ``XDG_CACHE_HOME`` moves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/graphs"


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _to_json(graph: OpGraph | None) -> dict[str, Any] | None:
    return None if graph is None else asdict(graph)


def _from_json(content: dict[str, Any] | None) -> OpGraph | None:
    if content is None:
        return None
    nodes = tuple(OpNode(**node) for node in content.pop("nodes"))
    return OpGraph(nodes=nodes, memory=MemoryEstimate(**content.pop("memory")), **content)
