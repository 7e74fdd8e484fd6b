"""Published jobs of timm's models, with their operator graphs if timm is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models import timm_models
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs

# Published counts are rounded to 0.01 million; a few models changed between releases.
PARAMETERS_APART, PARAMETERS_ROUNDING = 0.01, 1e4
# Publisher of the weights, or a change that does not affect the kind of model.
_PREFIXES = re.compile(
    r"^(?:(?:adv|bat|dm|eca|ens|ese|gc|gluon|ig|jx|lambda|legacy|nf|ssl|swsl|test|tf|tiny|tv|wide)_)+"
)
_SIZE = re.compile(r"v?\d+(?:x\d+|[a-z]{0,3})$")


@dataclass(frozen=True, slots=True)
class TimmJob:
    """A published training or inference job of a timm model.

    Attributes
    ----------
    side : int
        Side of the image in pixels; 0 for the model's default.
    optimizer : str
        Empty for inference.
    """

    model: str
    side: int
    batch_size: int
    optimizer: str
    precision: str

    @property
    def family(self) -> str:
        """Return the first word of the model's name, without publisher and size."""
        word = _PREFIXES.sub("", self.model).split("_")[0]
        return _SIZE.sub("", word) or word

    def graph(self, graphs: GraphCache) -> OpGraph | None:
        """Return its operator graph; None without timm, or if the model cannot be traced."""
        timm = timm_models.library()
        if timm is None or isinstance(graphs, NoGraphs):
            return None
        what = self.optimizer or "inference"
        size = f"{self.model}/s{self.side}/b{self.batch_size}"
        recipe = f"timm {timm.__version__} {what} {self.precision} {size}"
        return graphs.graph(recipe, self._trace)

    def _trace(self) -> OpGraph:
        module, inputs = timm_models.build(self.model, self.side, self.batch_size)
        training = self.optimizer != ""
        return trace_module(
            module.train(training), inputs, optimizer=self.optimizer or "sgd",
            training=training, precision=self.precision,
        )  # fmt: skip


def add_timm_job(
    imported: Imported,
    graphs: GraphCache,
    job_id: str,
    job: TimmJob,
    *,
    parameters: float,
    graph: OpGraph | None = None,
    **columns: Any,
) -> None:
    """Add a job once; a missing graph is noted with its reason.

    ``parameters`` is the source's count: a model with another count has changed since. ``graph``
    is the job's graph, if the caller has already read it from ``graphs``.
    """
    if imported.has_job(job_id):
        return
    graph = graph or job.graph(graphs)
    if graph is None:
        imported.note(f"job without a graph: {missing_graph_reason(graphs, job.model)}")
    elif abs(graph.parameters - parameters) > PARAMETERS_APART * parameters + PARAMETERS_ROUNDING:
        graph = None
        imported.note(f"job without a graph: {job.model} has other parameters in our timm")
    side = job.side or 224
    imported.job(
        job_id,
        graph=graph,
        name=f"{job.family}/{job.model}",
        family=job.family,
        precision=job.precision,
        optimizer=job.optimizer,
        batch_size=job.batch_size,
        **({} if graph else {"input_elements": 3 * side * side}),
        **columns,
    )


def missing_graph_reason(graphs: GraphCache, model: str) -> str:
    """Return the reason why a timm model has no graph."""
    if timm_models.library() is None:
        return graphs.missing_reason(timm_models.NOT_INSTALLED)
    return graphs.missing_reason(f"{model} is not traced")
