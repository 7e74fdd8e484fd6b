"""Inlining: a GraphDef's nodes with every function call replaced by the function's nodes.

TensorFlow 2 stores a model in a library of functions, and the graph calls one of them. Inside a
function, a tensor is named by the output's name and not by its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from presage.errors import GraphError
from presage.features.from_tensorflow.node import Node, producer
from presage.features.graph.graph_file import check_nodes

# A file of a few KB can nest function calls without limit.
_MAX_DEPTH = 64
# By attribute: the function that a node runs, and how many of its inputs are not arguments of it.
# Of a condition's branches the first represents all, because exactly one runs.
_CALLS = {
    "PartitionedCall": ("f", 0),
    "StatefulPartitionedCall": ("f", 0),
    "While": ("body", 0),
    "StatelessWhile": ("body", 0),
    "If": ("then_branch", 1),
    "StatelessIf": ("then_branch", 1),
    "Case": ("branches", 1),
    "StatelessCase": ("branches", 1),
}
# Operators with several outputs of different names, in order. Others have one output, or a list.
_OUTPUTS = {
    op: names.split()
    for ops, names in {
        "FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3": "y batch_mean batch_variance "
        "reserve_space_1 reserve_space_2 reserve_space_3",
        "FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3": "x_backprop "
        "scale_backprop offset_backprop reserve_space_3 reserve_space_4",
        "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits": "loss backprop",
        "TopK TopKV2": "values indices",
        "Unique UniqueV2": "y idx",
        "MaxPoolWithArgmax": "output argmax",
        "BroadcastGradientArgs": "r0 r1",
        "Switch": "output_false output_true",
        "Merge": "output value_index",
        "TensorListPopBack": "output_handle tensor",
        "CudnnRNN": "output output_h output_c reserve_space",
        "CudnnRNNV2 CudnnRNNV3": "output output_h output_c reserve_space host_reserved",
        "BlockLSTM BlockLSTMV2": "i cs f o ci co h",
        "LSTMBlockCell": "i cs f o ci co h",
    }.items()
    for op in ops.split()
}


@dataclass(frozen=True, slots=True)
class FlatGraph:
    """Nodes by name, without calls.

    Attributes
    ----------
    outputs : tuple of str
        The requested tensors.
    rounds : mapping of str to str
        By the loop's name, the tensor that bounds its iterations.
    carried : tuple of (str, str, str)
        For each variable of a loop: the loop, the initial tensor, and the tensor that an iteration
        passes to the next.
    """

    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]
    rounds: Mapping[str, str]
    carried: tuple[tuple[str, str, str], ...]


def flatten(graph: Any, outputs: Iterable[str] = ()) -> FlatGraph:
    """Return the nodes of a graph and of the functions it calls; ``outputs`` are tensor names.

    Raises
    ------
    GraphError
        A function is not in the library, or calls itself.
    """
    inliner = _Inliner(graph)
    inliner.add(graph.node, _Scope(prefix=""))
    nodes = {}
    for node in inliner.nodes:
        inputs = tuple(inliner.resolve(tensor) for tensor in node.inputs)
        nodes[node.name] = replace(node, inputs=inputs)
    rounds = {loop: inliner.resolve(tensor) for loop, tensor in inliner.rounds.items()}
    returned = tuple(inliner.resolve(_indexed(name)) for name in outputs)
    carried = tuple(
        (loop, inliner.resolve(start), inliner.resolve(left))
        for loop, start, left in inliner.carried
    )
    return FlatGraph(nodes, returned, rounds, carried)


@dataclass(frozen=True, slots=True)
class _Scope:
    """Prefix for new nodes: "" for the graph itself, "call/" for the body that a call runs."""

    prefix: str
    function: bool = False
    loops: tuple[str, ...] = ()
    depth: int = 0


class _Inliner:
    def __init__(self, graph: Any) -> None:
        self.nodes: list[Node] = []
        self.rounds: dict[str, str] = {}
        self.carried: list[tuple[str, str, str]] = []
        self._functions = {f.signature.name: f for f in graph.library.function}
        self._alias: dict[str, str] = {}

    def resolve(self, tensor: str) -> str:
        """Return the tensor that an argument or a call's output refers to."""
        seen = set()
        while tensor in self._alias and tensor not in seen:
            seen.add(tensor)
            tensor = self._alias[tensor]
        return tensor

    def add(self, nodes: Sequence[Any], scope: _Scope) -> None:
        ops = {node.name: node.op for node in nodes}
        for node in nodes:
            check_nodes(len(self.nodes), "the graph")
            data = [self._tensor(i, ops, scope) for i in node.input if i[:1] != "^"]
            controls = [scope.prefix + i[1:] for i in node.input if i[:1] == "^"]
            called, skipped = self._callee(node)
            if called is None:
                name = scope.prefix + node.name
                self.nodes.append(
                    Node(name, node.op, tuple(data), tuple(controls), node.attr, scope.loops)
                )
            else:
                self._call(node, called, data[skipped:], controls, scope)

    def _callee(self, node: Any) -> tuple[Any, int]:
        """Return the function that a node runs, or None, and how many inputs it does not get."""
        attribute, skipped = _CALLS.get(node.op, ("", 0))
        name = node.op
        if attribute in node.attr:
            value = node.attr[attribute]
            name = value.list.func[0].name if value.list.func else value.func.name
        function = self._functions.get(name)
        if attribute and function is None:
            raise GraphError(
                f"node {node.name!r} ({node.op}) calls {name!r}, which is not in the file's "
                "library; export the graph again, with its functions"
            )
        return function, skipped

    def _call(
        self, node: Any, function: Any, data: Sequence[str], controls: list[str], scope: _Scope
    ) -> None:
        name = scope.prefix + node.name
        if scope.depth >= _MAX_DEPTH:
            raise GraphError(
                f"node {name[-80:]!r} ({node.op}) is nested {_MAX_DEPTH} calls deep: a function "
                "calls itself; freeze the graph and use the frozen file"
            )
        loops = scope.loops
        if node.op.endswith("While"):
            loops = (*loops, name)
            # The first two variables of a loop are its counter and its maximum of iterations.
            self.rounds[name] = data[1] if len(data) > 1 else ""
            self.carried.extend((name, tensor, f"{name}:{i}") for i, tensor in enumerate(data))
        inner = _Scope(f"{name}/", function=True, loops=loops, depth=scope.depth + 1)
        for argument, tensor in zip(function.signature.input_arg, data, strict=False):
            self._alias[f"{inner.prefix}{argument.name}:0"] = tensor
        self.add(function.node_def, inner)
        ops = {n.name: n.op for n in function.node_def}
        returned = [function.ret[a.name] for a in function.signature.output_arg]
        for position, tensor in enumerate(returned):
            self._alias[f"{name}:{position}"] = self._tensor(tensor, ops, inner)
        # Nodes that wait for the call wait for its results and its side effects.
        effects = [inner.prefix + n for n in function.control_ret.values()]
        results = [producer(self.resolve(f"{name}:{i}")) for i in range(len(returned))]
        waits = (*controls, *effects, *results)
        self.nodes.append(Node(name, "NoOp", (), waits, {}, scope.loops))

    def _tensor(self, text: str, ops: Mapping[str, str], scope: _Scope) -> str:
        """Return the flat name of an input as it is written in ``scope``."""
        if not scope.function:
            return scope.prefix + _indexed(text)
        name, _, rest = text.partition(":")
        output, _, position = rest.rpartition(":")
        if name not in ops:  # an argument: "arg" or "arg:0"
            return f"{scope.prefix}{name}:{rest or 0}"
        if not output:
            output, position = rest, "0"
        offset = self._offset(ops[name], output)
        return f"{scope.prefix}{name}:{offset + (int(position) if position.isdecimal() else 0)}"

    def _offset(self, op: str, output: str) -> int:
        """Return the position of a named output among an operator's outputs."""
        if op in self._functions:
            names = [a.name for a in self._functions[op].signature.output_arg]
        else:
            names = _OUTPUTS.get(op, [])
        return names.index(output) if output in names else 0


def _indexed(text: str) -> str:
    """Add ":0" to a bare name, which refers to the first output."""
    name, colon, position = text.rpartition(":")
    return text if colon and position.isdecimal() and name else f"{text}:0"
