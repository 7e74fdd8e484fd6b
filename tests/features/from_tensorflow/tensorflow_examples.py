"""Small TensorFlow graphs, written with the messages that the reader uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from presage.features.from_tensorflow.messages import DATA_TYPES, message

_TYPES = {"float32": "DT_FLOAT", "int32": "DT_INT32", "int64": "DT_INT64", "float16": "DT_HALF"}


def node(name: str, op: str, *inputs: str, **attributes: Any) -> Any:
    made = message("NodeDef")(name=name, op=op, input=inputs)
    for key, value in attributes.items():
        _set(made.attr[key], key, value)
    return made


def _set(attribute: Any, key: str, value: Any) -> None:
    if key == "_output_shapes":
        attribute.list.SetInParent()
        for shape in value:
            attribute.list.shape.add().CopyFrom(_shape(shape))
    elif key == "shape":
        attribute.shape.CopyFrom(_shape(value))
    elif isinstance(value, np.ndarray):
        tensor = attribute.tensor
        tensor.dtype = DATA_TYPES[_TYPES[str(value.dtype)]]
        tensor.tensor_shape.CopyFrom(_shape(value.shape))
        tensor.tensor_content = value.tobytes()
    elif isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, list):
        attribute.list.i.extend(value)
    elif value in DATA_TYPES:
        attribute.type = DATA_TYPES[value]
    elif key in ("f", "body", "cond"):
        attribute.func.name = value
    else:
        attribute.s = value.encode()


def _shape(sizes: Sequence[int | None] | None) -> Any:
    made = message("Shape")(unknown_rank=sizes is None)
    for size in sizes or ():
        made.dim.add(size=-1 if size is None else size)
    return made


def placeholder(name: str, *shape: int | None, dtype: str = "DT_FLOAT") -> Any:
    return node(name, "Placeholder", shape=shape, dtype=dtype)


def const(name: str, value: Any) -> Any:
    array = np.asarray(value)
    return node(name, "Const", value=array.astype(np.int32) if array.dtype == np.int64 else array)


def weight(name: str, *shape: int) -> list[Any]:
    """Return a variable and its read operator."""
    return [
        node(name, "VarHandleOp", shape=shape, dtype="DT_FLOAT"),
        node(f"{name}/read", "ReadVariableOp", name, dtype="DT_FLOAT"),
    ]


def flat(*nodes: Any) -> list[Any]:
    return [n for item in nodes for n in (item if isinstance(item, list) else [item])]


def graph(*nodes: Any, functions: Sequence[Any] = ()) -> Any:
    made = message("GraphDef")(node=flat(*nodes))
    made.library.function.extend(functions)
    return made


def function(
    name: str, arguments: Sequence[str], *nodes: Any, returns: dict[str, str], runs: str = ""
) -> Any:
    made = message("FunctionDef")(node_def=flat(*nodes))
    made.signature.name = name
    for argument in arguments:
        made.signature.input_arg.add(name=argument)
    for output, tensor in returns.items():
        made.signature.output_arg.add(name=output)
        made.ret[output] = tensor
    if runs:
        made.control_ret["done"] = runs
    return made


def saved_model(content: Any, *, inputs: str, outputs: str, signature: str) -> Any:
    saved = message("SavedModel")()
    meta_graph = saved.meta_graphs.add()
    meta_graph.meta_info_def.tags.append("serve")
    meta_graph.graph_def.CopyFrom(content)
    if signature:
        meta_graph.signature_def[signature].inputs["x"].name = inputs
        meta_graph.signature_def[signature].outputs["y"].name = outputs
    return saved


def save(folder: Path, content: Any, name: str = "model.pb") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content.SerializeToString())
    return path
