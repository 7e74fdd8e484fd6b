"""Published job, matched with the zoo's configuration of the same model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from presage.pipelines.importers.imported import Imported
from presage.pipelines.importers.public_models.graph_cache import GraphCache
from presage.pipelines.profiling.running.training_step import INFERENCE
from presage.pipelines.profiling.zoo import JobConfig


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model of a source: its description, and the zoo job with its graph.

    Attributes
    ----------
    variant : str
        The zoo's; any name for a model that is not in the zoo.
    sizes : Mapping of str to int, optional
        Constructor sizes, if the zoo has the family but not the variant.
    input_elements : int
        Elements of one sample, for jobs without a graph.
    in_zoo : bool
        Whether the zoo builds exactly this architecture; else the job has no graph.
    """

    family: str
    variant: str
    optimizer: str
    input_elements: int
    loads_data: bool = True
    framework: str = "torch"
    in_zoo: bool = True
    sizes: Mapping[str, int] | None = None

    def config(self, batch_size: int, precision: str = "fp32") -> JobConfig:
        """Return the zoo's configuration."""
        return JobConfig(self.family, self.variant, batch_size, self.optimizer, precision)


def add_job(
    imported: Imported,
    graphs: GraphCache,
    job_id: str,
    model: PublicModel,
    *,
    batch_size: int,
    precision: str = "fp32",
) -> None:
    """Add a job once; a missing graph is noted with its reason."""
    if imported.has_job(job_id):
        return
    config = model.config(batch_size, precision)
    graph = graphs.zoo_graph(config, model.sizes) if model.in_zoo else None
    if graph is None:
        why = "is not traced" if model.in_zoo else "is none of the zoo's"
        why = graphs.missing_reason(f"{model.family}/{model.variant} {why}")
        imported.note(f"job without a graph: {why}")
    imported.job(
        job_id,
        graph=graph,
        name=f"{model.family}/{model.variant}",
        family=model.family,
        framework=model.framework,
        precision=precision,
        optimizer="" if model.optimizer == INFERENCE else model.optimizer,
        batch_size=batch_size,
        loads_data=model.loads_data,
        **({} if graph else {"input_elements": model.input_elements}),
    )
