"""Inference of all tensor shapes of a TensorFlow graph from its inputs, at one batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from presage.errors import GraphError
from presage.features.from_tensorflow.inputs import (
    INPUTS,
    Shape,
    Sizes,
    check_batch,
    input_values,
    is_variable,
    missing_shape_error,
    read_shapes,
    variable_value,
)
from presage.features.from_tensorflow.node import Node, producer
from presage.features.from_tensorflow.shapes.array_rules import MAX_OUTPUTS
from presage.features.from_tensorflow.shapes.folding import (
    NUMBERS_ONLY,
    SHAPE_OF,
    VIEWS,
    fold,
    view,
)
from presage.features.from_tensorflow.shapes.lists import LIST_RULES
from presage.features.from_tensorflow.shapes.rules import RULES
from presage.features.from_tensorflow.value import (
    BOOL,
    FLOAT,
    INT32,
    INT64,
    RESOURCE,
    VARIANT,
    Value,
    constant,
)
from presage.features.graph.op_kinds import TENSORFLOW_FREE, tensorflow_kind

_RULED = frozenset({*RULES, *VIEWS, *LIST_RULES, *NUMBERS_ONLY})
_SWITCHES = frozenset({"Switch", "RefSwitch"})
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd"})
_COMPARISONS = frozenset(
    "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot IsNan "
    "IsInf IsFinite All Any".split()
)


def infer_shapes(nodes: Sequence[Node], sizes: Sizes) -> dict[str, Value]:
    """Infer the output shapes of ``nodes``, which are in topological order.

    An operator without a rule keeps its first input's shape.

    Raises
    ------
    GraphError
        A shape depends on something outside the file; names the node.
    """
    read = dict(read_shapes(nodes))
    used = _outputs_used(nodes)
    values: dict[str, Value] = {}
    for node in nodes:
        inputs = [values.get(tensor) for tensor in node.inputs]
        written = _infer_outputs(node, inputs, sizes, read)
        # Outputs beyond those of the rule are assumed to be like its last one.
        missing = used.get(node.name, 0) + 1 - len(written)
        written = [*written, *written[-1:] * missing]
        values.update((f"{node.name}:{i}", value) for i, value in enumerate(written))
    check_batch([n for n in nodes if n.op in INPUTS and not is_variable(n)], values, sizes)
    return values


def _outputs_used(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the last output of each node that another node reads."""
    used: dict[str, int] = {}
    for node in nodes:
        for tensor in node.inputs:
            name, _, position = tensor.rpartition(":")
            used[name] = max(used.get(name, 0), int(position))
            if used[name] >= MAX_OUTPUTS:
                raise GraphError(
                    f"node {node.name!r} ({node.op}) reads output {used[name]} of {name!r}; at "
                    f"most {MAX_OUTPUTS} are supported; export the graph again"
                )
    return used


def _infer_outputs(
    node: Node,
    inputs: Sequence[Value | None],
    sizes: Sizes,
    read: Mapping[str, tuple[Shape, int]],
) -> list[Value]:
    """Return the outputs of a node."""
    if is_variable(node):
        return [variable_value(node, read)]
    if node.op in INPUTS:
        return input_values(node, inputs, sizes)
    if node.op == "Const":
        return [constant(node.attr["value"].tensor, f"constant {node.name!r}")]
    known = [value for value in inputs if value is not None]
    if node.op == "Merge" and known:  # the branches of a condition are alike
        return [known[0], Value((), INT32)]
    if len(known) < len(inputs):
        missing = node.inputs[inputs.index(None)]
        raise GraphError(
            f"node {node.name!r} ({node.op}) reads {missing!r}, which is not in the file; "
            "export the whole graph"
        )
    if node.op in _READS and known[0].dtype == RESOURCE:
        raise missing_shape_error(producer(node.inputs[0]))
    try:
        return _infer_node(node, known, sizes)
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        shapes = ", ".join(str(list(value.shape)) for value in known)
        raise GraphError(
            f"node {node.name!r} ({node.op}): inputs of shape {shapes} do not fit "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}); "
            "check the graph, and --dim if you set it"
        ) from error


def _infer_node(node: Node, inputs: Sequence[Value], sizes: Sizes) -> list[Value]:
    # For a list of tensors or a handle the file declares the shape of the container only.
    boxed = node.dtype("T") in (RESOURCE, VARIANT)
    if inputs and node.op in (TENSORFLOW_FREE if boxed else _SWITCHES):
        return [inputs[0], inputs[0]]
    declared = [] if boxed else node.declared_shapes()
    shown = view(node, inputs) if node.op in VIEWS and inputs else None
    if shown is not None:
        return [shown]
    shapes = _shapes(node, inputs, declared)
    if shapes is None and node.op in NUMBERS_ONLY:
        folded = fold(node, inputs, [])
        if folded:
            return folded
    dtype = _dtype(node, inputs)
    known = _fallback(node, inputs, declared, sizes) if shapes is None else shapes
    return fold(node, inputs, [Value(tuple(int(n) for n in s), dtype) for s in known])


def _shapes(
    node: Node, inputs: Sequence[Value], declared: Sequence[Shape | None]
) -> Sequence[Shape] | None:
    """Return the declared shapes if they are complete, else those of the operator's rule."""
    if node.op in LIST_RULES:
        return LIST_RULES[node.op](node, inputs)
    whole = [shape for shape in declared if shape is not None and min(shape, default=0) >= 0]
    if declared and len(whole) == len(declared):
        return whole
    if inputs and tensorflow_kind(node.op) == "Update":
        return [inputs[0].shape]
    rule = RULES.get(node.op)
    return rule(node, inputs) if rule and inputs else None


def _fallback(
    node: Node,
    inputs: Sequence[Value],
    declared: Sequence[Shape | None],
    sizes: Sizes,
) -> list[Shape]:
    """Return the declared shapes with the batch filled in, else the first input's shape."""
    if declared and all(s is not None and min(s[1:], default=0) >= 0 for s in declared):
        return [
            (sizes.batch_size if s[0] < 0 else s[0], *s[1:]) if s else ()
            for s in declared
            if s is not None
        ]
    if not inputs:
        return [()]  # a table, an iterator, a lock
    if node.op in _RULED or tensorflow_kind(node.op) != "Other":
        raise GraphError(
            f"the output shape of node {node.name!r} ({node.op}) depends on something outside the "
            "file; export the graph with as_graph_def(add_shapes=True), or freeze it with static "
            "shapes"
        )
    return [inputs[0].shape]


def _dtype(node: Node, inputs: Sequence[Value]) -> int:
    if node.op in _COMPARISONS:
        return BOOL
    if node.op in SHAPE_OF or node.op in ("Size", "Rank"):
        return node.dtype("out_type", default=INT32)
    if node.op in ("ArgMax", "ArgMin"):
        return node.dtype("output_type", default=INT64)
    own = node.dtype("DstT", "dtype", "element_dtype")
    if own or not inputs:
        return own or node.dtype("T", "out_type", "Tout", default=FLOAT)
    if node.op in RULES and "T" not in node.attr:
        return inputs[0].dtype
    return node.dtype("T", "Tparams", default=inputs[0].dtype)
