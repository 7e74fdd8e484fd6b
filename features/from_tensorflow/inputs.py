"""Inputs of a TensorFlow graph, with every dimension bound, and its variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from presage.errors import GraphError
from presage.features.from_tensorflow.node import Node, producer
from presage.features.from_tensorflow.value import FLOAT, RESOURCE, Value

Shape = tuple[int, ...]
PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})
INPUTS = PLACEHOLDERS | {"IteratorGetNext"}
VARIABLES = frozenset({"VariableV2", "Variable", "VarHandleOp", "TemporaryVariable"})


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values of the dimensions that a file leaves open."""

    batch_size: int
    dims: Mapping[str, int]

    def __post_init__(self) -> None:
        for name, size in {"batch size": self.batch_size, **self.dims}.items():
            if size < 1:
                raise GraphError(f"{name} is {size}; use a dimension of at least 1")

    def bind(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of an input with every dimension bound.

        Raises
        ------
        GraphError
            An open dimension other than the first has no value.
        """
        return tuple(self._size(name, i) if n < 0 else n for i, n in enumerate(shape))

    def _size(self, name: str, axis: int) -> int:
        default = self.batch_size if axis == 0 else self.dims.get(name)
        size = self.dims.get(f"{name}:{axis}", default)
        if size is None:
            raise GraphError(
                f"placeholder {name!r}, dimension {axis}, has no value; pass --dim {name}:{axis}=N"
            )
        return size


def is_variable(node: Node) -> bool:
    """Return whether a node holds a variable, or is a function's argument for one."""
    return node.op in VARIABLES or (node.op in PLACEHOLDERS and node.dtype("dtype") == RESOURCE)


def variable_value(node: Node, read: Mapping[str, tuple[Shape, int]]) -> Value:
    """Return a variable as the file declares it, or as it is ``read`` in a function.

    Raises
    ------
    GraphError
        The file does not contain its shape.
    """
    declared = node.declared_shapes("shape") if node.op in VARIABLES else []
    shape = declared[0] if declared else None
    if shape is not None and min(shape, default=0) >= 0:
        return Value(shape, node.dtype("dtype", default=FLOAT))
    if node.name in read:
        return Value(*read[node.name])
    if node.op in PLACEHOLDERS:
        # An unread variable or a hash table: no predictor needs its size.
        return Value((), RESOURCE)
    raise missing_shape_error(node.name)


def missing_shape_error(variable: str) -> GraphError:
    """Return the error for a variable whose shape is not in the file."""
    return GraphError(
        f"variable {variable!r} has no shape; export the graph with as_graph_def(add_shapes=True)"
    )


def input_values(node: Node, inputs: Sequence[Value | None], sizes: Sizes) -> list[Value]:
    """Return the outputs of a placeholder or an iterator.

    Raises
    ------
    GraphError
        It has no shape, or a dimension has no value.
    """
    if node.op == "IteratorGetNext":
        types = [int(t) for t in node.attr["output_types"].list.type]
        shapes = node.declared_shapes("output_shapes")
        names = [f"{node.name}:{i}" for i in range(len(shapes))]
    else:
        types, names = [node.dtype("dtype", default=FLOAT)], [node.name]
        declared = node.declared_shapes("shape")
        shapes = declared if declared and declared[0] is not None else node.declared_shapes()
    default = inputs[0] if inputs else None
    if default is not None and (not shapes or shapes[0] is None):
        return [default]
    if not shapes or None in shapes:
        raise GraphError(
            f"placeholder {node.name!r} has no shape; export the graph with a shape for it, "
            "such as [None, 224, 224, 3]"
        )
    bound = [sizes.bind(n, s) for n, s in zip(names, shapes, strict=True) if s is not None]
    return [Value(shape, dtype) for shape, dtype in zip(bound, types, strict=True)]


def check_batch(inputs: Sequence[Node], values: Mapping[str, Value], sizes: Sizes) -> None:
    """Check that the graph can run at the batch size.

    Raises
    ------
    GraphError
        All inputs have a fixed batch that differs from the batch size.
    """
    shapes = {n.name: values[f"{n.name}:0"].shape for n in inputs}
    batches = {name: shape[0] for name, shape in shapes.items() if len(shape) > 1}
    if not batches or sizes.batch_size in [s[0] for s in shapes.values() if s]:
        return
    name, size = next(iter(batches.items()))
    raise GraphError(
        f"placeholder {name!r} has a fixed batch of {size}, not {sizes.batch_size}; "
        f"pass --batch-size {size}, or export it with a batch of None"
    )


def read_shapes(nodes: Iterable[Node]) -> Iterator[tuple[str, tuple[Shape, int]]]:
    """Yield shape and type of each variable that is read from its handle."""
    for node in nodes:
        shapes = node.declared_shapes() if node.op == "ReadVariableOp" else []
        if shapes and shapes[0] is not None and min(shapes[0], default=0) >= 0:
            yield producer(node.inputs[0]), (shapes[0], node.dtype("dtype", default=FLOAT))
