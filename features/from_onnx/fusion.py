"""Fusion of attention that an exporter decomposed into the single operator that devices run.

Before opset 23 ONNX has no attention operator: a file holds two products with a softmax between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from presage.features.from_onnx.cost import Value

# Operators allowed between the scores and their softmax, and between it and the second product.
_BEFORE = frozenset({"Mul", "Div", "Add", "Where", "Cast"})
_AFTER = frozenset({"Dropout", "Cast"})


def fuse_attention(model: Any, values: Mapping[str, Value]) -> dict[str, Value]:
    """Replace softmax(Q K + mask) V by Attention if no other node reads the intermediate results.

    Returns
    -------
    dict of str to Value
        ``values``, and those of the keys in the operator's layout: (..., length, width).
    """
    links = _Links(model.graph, values)
    found = dict(values)
    for softmax in [node for node in model.graph.node if node.op_type == "Softmax"]:
        before, after = links.to_product(softmax.input[0]), links.from_product(softmax.output[0])
        if not before or not after:
            continue
        scores, weighted = before[0], after[-1]
        (query, *query_scale), (key, *key_scale) = map(links.unscaled, scores.input)
        keys = found.get(key)
        if keys is None or len(keys.shape) < 3 or links.holds_weights(scores, weighted):
            continue
        turned = f"{key} turned"
        found[turned] = Value((*keys.shape[:-2], *keys.shape[:-3:-1]), keys.elem_type)
        inputs = [query, turned, weighted.input[1], *links.masks(before)]
        links.replace([*query_scale, *key_scale, *before, softmax, *after], inputs)
    return found


class _Links:
    """Writer and readers of each tensor of a graph."""

    def __init__(self, graph: Any, values: Mapping[str, Value]) -> None:
        self._graph, self._values = graph, values
        self._weights = {tensor.name for tensor in graph.initializer}
        self._writer = {name: node for node in graph.node for name in node.output}
        self._reads = Counter(name for node in graph.node for name in node.input)
        self._reads.update(value.name for value in graph.output)
        self._reader = {name: node for node in graph.node for name in node.input}

    def to_product(self, name: str) -> list[Any]:
        """Return the nodes from the product that ``name`` derives from to its writer, or none."""
        node = self._writer.get(name)
        if node is None or self._reads[name] != 1:
            return []
        if node.op_type == "MatMul":
            return [node]
        if node.op_type in _BEFORE:
            for source in node.input:
                if chain := self.to_product(source):
                    return [*chain, node]
        return []

    def from_product(self, name: str) -> list[Any]:
        """Return the nodes from the reader of ``name`` to the product with it as left factor."""
        node = self._reader.get(name)
        if node is None or self._reads[name] != 1 or node.input[0] != name:
            return []
        if node.op_type == "MatMul":
            return [node]
        rest = self.from_product(node.output[0]) if node.op_type in _AFTER else []
        return [node, *rest] if rest else []

    def unscaled(self, name: str) -> tuple[Any, ...]:
        """Return the name of a factor before scaling by one number, and the node that scales it."""
        node = self._writer.get(name)
        if node is None or node.op_type not in ("Mul", "Div") or self._reads[name] != 1:
            return (name,)
        sizes = [self._values[n].elements if n in self._values else 0 for n in node.input]
        return (node.input[0], node) if sizes[1] == 1 else (name,)

    def holds_weights(self, scores: Any, weighted: Any) -> bool:
        """Return whether keys or values are weights: then it is two layers and a softmax."""
        return scores.input[1] in self._weights or weighted.input[1] in self._weights

    def masks(self, before: Sequence[Any]) -> list[str]:
        """Return the names of masks on the scores, without scales."""
        inside = {name for node in before for name in node.output}
        operands = [name for node in before[1:] for name in node.input if name not in inside]
        return [n for n in operands if n in self._values and self._values[n].elements > 1][:1]

    def replace(self, nodes: Sequence[Any], inputs: Sequence[str]) -> None:
        """Replace these nodes by one Attention operator at the position of the last."""
        attention = onnx.helper.make_node("Attention", inputs, nodes[-1].output[:1])
        written = {name for node in nodes for name in node.output}
        kept = [node for node in self._graph.node if node.output[0] not in written]
        position = next((i for i, node in enumerate(kept) if written & set(node.input)), len(kept))
        del self._graph.node[:]
        self._graph.node.extend([*kept[:position], attention, *kept[position:]])
