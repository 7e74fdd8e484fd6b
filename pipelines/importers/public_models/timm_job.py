"""Jobs that others ran of timm's models, with their operator graphs where timm is installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from presage.features.from_torch.graph import trace_module
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models import timm_models
from presage.pipelines.importers.public_models.graph_cache import GraphCache, NoGraphs

# Published counts are rounded to 0.01 million; between releases a few models became others.
PARAMETERS_APART, PARAMETERS_ROUNDING = 0.01, 1e4
# Who published the weights, or a change that leaves the kind of model what it is.
_PREFIXES = re.compile(
    r"^(?:(?:adv|bat|dm|eca|ens|ese|gc|gluon|ig|jx|lambda|legacy|nf|ssl|swsl|test|tf|tiny|tv|wide)_)+"
)
_SIZE = re.compile(r"v?\d+(?:x\d+|[a-z]{0,3})$")


@dataclass(frozen=True, slots=True)
class TimmJob:
    """A model of timm that somebody trained or asked.

    Attributes
    ----------
    side : int
        Pixels of a side of the image; 0 for what the model is made for.
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
        """The first word of the model's name, without its publisher and its size."""
        word = _PREFIXES.sub("", self.model).split("_")[0]
        return _SIZE.sub("", word) or word

    def graph(self, graphs: GraphCache) -> OpGraph | None:
        """Its operator graph; None without timm, or where the model cannot be traced."""
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
    """Describe a job once; one without a graph is noted with the reason.

    ``parameters`` are those the source counted: a model that has others by now is another one.
    ``graph`` is the job's, where the caller has read it from ``graphs`` already.
    """
    if imported.has_job(job_id):
        return
    graph = graph or job.graph(graphs)
    if graph is None:
        imported.note(f"job without a graph: {why_no_graph(graphs, job.model)}")
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


def why_no_graph(graphs: GraphCache, model: str) -> str:
    """Why a model that timm should have is without a graph."""
    if timm_models.library() is None:
        return graphs.why_none(timm_models.NOT_INSTALLED)
    return graphs.why_none(f"{model} is not traced")
