"""Graph networks on a random graph: GCN (Kipf, Welling 2016), GraphSAGE (Hamilton et al. 2017)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

DROPOUT = 0.5


class GcnLayer(nn.Module):
    """Linear layer, then a weighted sum over each node, including the node itself."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degrees: Tensor) -> Tensor:
        """Nodes (N, width_in), edges (E,) and (E,), degrees (N, 1) -> (N, width_out)."""
        x = self.linear(x) * degrees.rsqrt()  # normalized by both ends of an edge
        return (x + sum_of_neighbours(x, source, target)) * degrees.rsqrt() + self.bias


class SageLayer(nn.Module):
    """One linear layer of the node itself, one of the mean over its neighbours."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.own = nn.Linear(width_in, width_out, bias=False)
        self.neighbours = nn.Linear(width_in, width_out)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degrees: Tensor) -> Tensor:
        """Nodes (N, width_in), edges (E,) and (E,), degrees (N, 1) -> (N, width_out)."""
        mean = sum_of_neighbours(x, source, target) / degrees
        out: Tensor = self.own(x) + self.neighbours(mean)
        return out


def sum_of_neighbours(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return every target node's sum over its sources, (N, width)."""
    messages = x.index_select(0, source)  # (E, width)
    # Not index_add, which would save every message for the backward pass.
    return torch.zeros_like(x).scatter_add(0, target.unsqueeze(1).expand_as(messages), messages)


class GraphNetwork(nn.Module):
    """Layers with optional batch norm, ReLU and dropout between them."""

    def __init__(
        self, layer: type[GcnLayer] | type[SageLayer], widths: list[int], batch_norm: bool
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(before, after) for before, after in pairwise(widths))
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(width) if batch_norm else nn.Identity() for width in widths[1:-1]
        )

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degrees: Tensor) -> Tensor:
        """Nodes (N, features), edges (E,) and (E,), degrees (N, 1) -> logits (N, classes)."""
        x = self.layers[0](x, source, target, degrees)
        for norm, layer in zip(self.norms, self.layers[1:], strict=True):
            hidden = F.dropout(F.relu(norm(x)), DROPOUT, training=self.training)
            x = layer(hidden, source, target, degrees)
        return x


def training_step(
    *, batch_size: int, optimizer: str, nodes: int, edges: int, features: int, width: int,
    depth: int, classes: int, sage: int, batch_norm: int,
) -> TrainingStep:  # fmt: skip
    """Classify every node of ``batch_size`` graphs, which form one graph without edges between.

    A random edge joins any two nodes, in both directions: the assignment to graphs has no cost.
    """
    count = batch_size * nodes
    ends = torch.randint(count, (2, batch_size * edges))
    source, target = torch.cat([ends, ends.flip(0)], dim=1).unbind(0)
    degrees = torch.ones(count).index_add(0, target, torch.ones(target.shape[0])).unsqueeze(1)
    labels = torch.randint(classes, (count,))
    model = GraphNetwork(
        SageLayer if sage else GcnLayer,
        [features, *[width] * (depth - 1), classes],
        bool(batch_norm),
    )
    return supervised(
        model,
        (torch.randn(count, features), source, target, degrees),
        lambda logits: F.cross_entropy(logits, labels),
        optimizer=optimizer,
        input_elements=nodes * features,
    )


# Nodes and edges as in the data sets. The networks have the 110,120 (GCN) and 218,664 (SAGE)
# parameters of the Open Graph Benchmark's examples (Hu et al. 2020), and Kipf's 23,063 on Cora.
ARXIV = {
    "nodes": 169_343, "edges": 1_166_243, "features": 128, "width": 256, "depth": 3,
    "classes": 40, "batch_norm": 1,
}  # fmt: skip
CORA = {
    "nodes": 2_708, "edges": 5_429, "features": 1_433, "width": 16, "depth": 2,
    "classes": 7, "batch_norm": 0,
}  # fmt: skip

FAMILY = Family(
    name="gnn",
    variants={
        "gcn-cora": CORA | {"sage": 0},
        "sage-cora-w64": CORA | {"sage": 1, "width": 64},
        "gcn-n4k-w64": ARXIV | {"sage": 0, "nodes": 4_000, "edges": 28_000, "width": 64},
        "sage-n2k-w128": ARXIV | {"sage": 1, "nodes": 2_000, "edges": 14_000, "width": 128},
    },
    batch_sizes=(1, 2, 4),
    optimizer="adam",
    build=training_step,
    large={
        "gcn-arxiv": ARXIV | {"sage": 0},
        "sage-arxiv": ARXIV | {"sage": 1},
        "gcn-cora-x32": CORA | {"sage": 0, "nodes": 32 * 2_708, "edges": 32 * 5_429},
    },
    large_batch_sizes=(1, 2, 4),
)
