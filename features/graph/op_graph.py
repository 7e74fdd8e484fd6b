"""Operator graph of a training step, reduced to the inputs of cost model and features."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from presage.errors import GraphError
from presage.features.graph.step_memory import MemoryEstimate

PHASES = ("forward", "backward", "optimizer")
MAX_COUNT = 2**63 - 1  # the largest integer of a request and a table column
_AMOUNTS = (
    "input_elements", "output_elements", "parameters", "flops", "bytes_moved", "count",
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class OpNode:
    """``count`` equal operators.

    Elements and bytes are those of one operator at the traced batch size. ``input_elements``
    counts activations and gradients, ``parameters`` counts trainable inputs (requirement F1: the
    input size of an operator depends on the data, not on the model's weights).
    """

    op: str
    kind: str
    phase: str
    input_elements: int
    output_elements: int
    parameters: int
    flops: int
    bytes_moved: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class OpGraph:
    """A training step as a multiset of operators.

    Order and edges are not stored: no predictor reads them, and without them equal blocks
    collapse, so that a deep network is a few hundred rows.

    Attributes
    ----------
    parameters : int
        Distinct trainable elements; of a model without trainable parameters, all elements.
    peak_live_bytes : int
        Maximum bytes alive at once in a step: the peak of ``memory``.
    input_elements : int
        Elements of one sample of the input.
    memory : MemoryEstimate
        Memory components of a step.
    """

    nodes: tuple[OpNode, ...]
    parameters: int
    peak_live_bytes: int
    input_elements: int
    memory: MemoryEstimate

    def __post_init__(self) -> None:
        if not self.nodes:
            raise GraphError(
                "the graph has no operators; check that the model computes something from its input"
            )
        for name in ("parameters", "peak_live_bytes", "input_elements"):
            if not 0 <= getattr(self, name) <= MAX_COUNT:
                raise GraphError(
                    f"the graph's {name} is not in 0 to 2**63 - 1; check the dimensions of its "
                    "tensors, and --dim and --batch-size if you set them"
                )
        for node in self.nodes:
            for name in _AMOUNTS:
                if not 0 <= getattr(node, name) <= MAX_COUNT:
                    raise GraphError(
                        f"operator {node.op!r}: {name} is not in 0 to 2**63 - 1; check the "
                        "dimensions of its tensors, and --dim and --batch-size if you set them"
                    )

    @property
    def digest(self) -> str:
        """Content hash: equal graphs have equal digests, in any process and checkout."""
        content = json.dumps(
            [
                [astuple(node) for node in self.nodes],
                self.parameters,
                self.peak_live_bytes,
                self.input_elements,
                astuple(self.memory),
            ]
        )
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    @property
    def unknown_ops(self) -> dict[str, int]:
        """Operators that are not in the op table, with their counts."""
        counts: Counter[str] = Counter()
        for node in self.nodes:
            if node.kind == "Other":
                counts[node.op] += node.count
        return dict(sorted(counts.items()))


def merge_equal(nodes: Iterable[OpNode]) -> tuple[OpNode, ...]:
    """Collapse equal operators into one node with a count, in sorted order."""
    counts: Counter[OpNode] = Counter()
    for node in nodes:
        counts[node if node.count == 1 else replace(node, count=1)] += node.count
    return tuple(sorted(replace(node, count=count) for node, count in counts.items()))
