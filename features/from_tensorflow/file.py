"""Parsing of a TensorFlow file: a GraphDef, a SavedModel or a MetaGraphDef, binary or text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from presage.errors import GraphError
from presage.features.from_tensorflow.messages import message
from presage.features.graph.graph_file import read_file

SAVED_MODELS = ("saved_model.pb", "saved_model.pbtxt")
# Values of tensors up to this size are kept: the few numbers that Reshape, Pad and others need.
_MAX_KEPT_BYTES = 1024
_NUMBERS = (
    "tensor_content", "float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val",
    "uint64_val",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorflowFile:
    """Content of a model file, without the values of its weights.

    Attributes
    ----------
    outputs : tuple of str
        Tensors that its serving signature returns, as written; empty without a signature.
    trains : mapping of str to bool
        Whether a variable is trained, for variables whose file records it.
    """

    path: Path
    graph: Any
    outputs: tuple[str, ...] = ()
    trains: Mapping[str, bool] = field(default_factory=dict)


def load_file(path: Path) -> TensorflowFile:
    """Load the file at ``path``, or the SavedModel in that folder.

    Raises
    ------
    GraphError
        The file is missing, empty, truncated, not TensorFlow's, or has no graph; a SavedModel has
        no serving signature.
    """
    file = _find_saved_model(path) if path.is_dir() else path
    content = read_file(file)
    if not content:
        raise GraphError(f"{path}: empty; export the graph again")
    if file.suffix == ".meta":
        return _read_meta_graph(_parse("MetaGraphDef", content, file), path)
    if file.name in SAVED_MODELS:
        return _read_saved_model(_parse("SavedModel", content, file), path)
    graph = _try_parse("GraphDef", content, file)
    if isinstance(graph, str) or not _is_graph(graph):
        # A SavedModel may have any name; its fields are not nodes.
        saved = _try_parse("SavedModel", content, file)
        if not isinstance(saved, str) and saved.meta_graphs:
            return _read_saved_model(saved, path)
    if isinstance(graph, str):
        raise _unreadable(path, content, graph)
    if not _is_graph(graph):
        raise GraphError(
            f"{path}: no TensorFlow graph in the file ({len(graph.node)} nodes with an "
            "operator); use a GraphDef, a SavedModel's folder or a checkpoint's .meta file"
        )
    _drop_weights(graph)
    return TensorflowFile(path, graph)


def _find_saved_model(path: Path) -> Path:
    found = next((path / name for name in SAVED_MODELS if (path / name).is_file()), None)
    if found is None:
        raise GraphError(
            f"{path}: a folder without {SAVED_MODELS[0]}; use a SavedModel's folder or a file"
        )
    return found


def _is_graph(graph: Any) -> bool:
    return bool(graph.node) and all(node.name and node.op for node in graph.node)


def _parse(kind: str, content: bytes, file: Path) -> Any:
    found = _try_parse(kind, content, file)
    if isinstance(found, str):
        raise _unreadable(file, content, found)
    return found


def _unreadable(path: Path, content: bytes, why: str) -> GraphError:
    return GraphError(
        f"{path}: truncated, or not a TensorFlow graph ({len(content)} bytes do not parse{why}); "
        "export it again, or give a text file the suffix .pbtxt"
    )


def _try_parse(kind: str, content: bytes, file: Path) -> Any:
    """Return the message, or the parser's description of the error."""
    parsed = message(kind)()
    try:
        if file.suffix in (".pbtxt", ".prototxt"):
            text_format.Parse(content.decode(), parsed, allow_unknown_field=True)
        else:
            parsed.ParseFromString(content)
    except text_format.ParseError as error:
        return f": {str(error).splitlines()[0]}"
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    parsed.DiscardUnknownFields()
    return parsed


def _read_saved_model(saved: Any, path: Path) -> TensorflowFile:
    """Read the serving graph of a SavedModel, found by its signature."""
    if not saved.meta_graphs:
        raise GraphError(f"{path}: the SavedModel has no graph; export it again")
    served = [m for m in saved.meta_graphs if "serve" in m.meta_info_def.tags]
    meta_graph = served[0] if served else saved.meta_graphs[0]
    named = {n: s for n, s in meta_graph.signature_def.items() if s.outputs and n[:2] != "__"}
    signature = named.get("serving_default")
    if signature is None and len(named) == 1:
        signature = next(iter(named.values()))
    if signature is None:
        raise GraphError(
            f"{path}: the SavedModel has no signature 'serving_default' "
            f"(its signatures: {', '.join(sorted(named)) or 'none'}); "
            "save it with tf.saved_model.save(model, folder, signatures=function)"
        )
    outputs = tuple(info.name for _, info in sorted(signature.outputs.items()))
    return _read_meta_graph(meta_graph, path, outputs)


def _read_meta_graph(meta_graph: Any, path: Path, outputs: tuple[str, ...] = ()) -> TensorflowFile:
    if not _is_graph(meta_graph.graph_def):
        raise GraphError(f"{path}: no TensorFlow graph in the file; export it again")
    _drop_weights(meta_graph.graph_def)
    return TensorflowFile(path, meta_graph.graph_def, outputs, dict(_trains(meta_graph)))


def _trains(meta_graph: Any) -> Iterator[tuple[str, bool]]:
    """Yield each named variable and whether it is trained: TensorFlow 1's way, then 2's."""
    collections = meta_graph.collection_def
    for name in ("variables", "trainable_variables"):
        for row in collections[name].bytes_list.value if name in collections else ():
            variable = message("VariableDef")()
            try:
                variable.ParseFromString(row)
            except DecodeError:  # variables of another library, without this information
                continue
            yield variable.variable_name.partition(":")[0], name == "trainable_variables"
    for saved in meta_graph.object_graph_def.nodes:
        if saved.variable.name:
            yield saved.variable.name, saved.variable.trainable


def _drop_weights(graph: Any) -> None:
    """Drop the values of all but small tensors."""
    for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
        if "value" in node.attr and node.attr["value"].tensor.ByteSize() > _MAX_KEPT_BYTES:
            for name in _NUMBERS:
                node.attr["value"].tensor.ClearField(name)
