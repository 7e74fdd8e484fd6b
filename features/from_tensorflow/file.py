"""A TensorFlow file as parsed: a GraphDef, a SavedModel or a MetaGraphDef, binary or text."""

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
# Values of tensors up to this size are kept: the few numbers that Reshape, Pad and the like get.
_KEPT_BYTES = 1024
_NUMBERS = (
    "tensor_content", "float_val", "double_val", "int_val", "int64_val", "bool_val", "uint32_val",
    "uint64_val",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorflowFile:
    """What a file says about a model, its weights' values dropped.

    Attributes
    ----------
    outputs : tuple of str
        Tensors that its serving signature returns, as written; none where it has no signature.
    trains : mapping of str to bool
        Whether a variable is trained, for those that the file says it of.
    """

    path: Path
    graph: Any
    outputs: tuple[str, ...] = ()
    trains: Mapping[str, bool] = field(default_factory=dict)


def load_file(path: Path) -> TensorflowFile:
    """The file at ``path``, or the SavedModel in that folder.

    Raises
    ------
    GraphError
        It is missing, empty, truncated, not TensorFlow's, or holds no graph; a SavedModel has no
        serving signature.
    """
    file = _in_folder(path) if path.is_dir() else path
    content = read_file(file)
    if not content:
        raise GraphError(f"{path}: is empty; export the graph again")
    if file.suffix == ".meta":
        return _of_meta_graph(_parsed("MetaGraphDef", content, file), path)
    if file.name in SAVED_MODELS:
        return _of_saved_model(_parsed("SavedModel", content, file), path)
    graph = _try_parse("GraphDef", content, file)
    if isinstance(graph, str) or not _is_graph(graph):
        # A SavedModel may go by any name; its fields are no nodes.
        saved = _try_parse("SavedModel", content, file)
        if not isinstance(saved, str) and saved.meta_graphs:
            return _of_saved_model(saved, path)
    if isinstance(graph, str):
        raise _unreadable(path, content, graph)
    if not _is_graph(graph):
        raise GraphError(
            f"{path}: parses, but holds no TensorFlow graph ({len(graph.node)} nodes with an "
            "operator); give a GraphDef, a SavedModel's folder or a checkpoint's .meta file"
        )
    _drop_weights(graph)
    return TensorflowFile(path, graph)


def _in_folder(path: Path) -> Path:
    found = next((path / name for name in SAVED_MODELS if (path / name).is_file()), None)
    if found is None:
        raise GraphError(
            f"{path}: a folder without {SAVED_MODELS[0]}; give a SavedModel's folder or a file"
        )
    return found


def _is_graph(graph: Any) -> bool:
    return bool(graph.node) and all(node.name and node.op for node in graph.node)


def _parsed(kind: str, content: bytes, file: Path) -> Any:
    found = _try_parse(kind, content, file)
    if isinstance(found, str):
        raise _unreadable(file, content, found)
    return found


def _unreadable(path: Path, content: bytes, why: str) -> GraphError:
    return GraphError(
        f"{path}: truncated, or not a TensorFlow graph ({len(content)} bytes do not parse{why}); "
        "export it again, or name a text file .pbtxt"
    )


def _try_parse(kind: str, content: bytes, file: Path) -> Any:
    """The message, or what is wrong with it as far as the parser says."""
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


def _of_saved_model(saved: Any, path: Path) -> TensorflowFile:
    """The graph of a SavedModel that serves, reached by its signature."""
    if not saved.meta_graphs:
        raise GraphError(f"{path}: a SavedModel without a graph; export it again")
    served = [m for m in saved.meta_graphs if "serve" in m.meta_info_def.tags]
    meta_graph = served[0] if served else saved.meta_graphs[0]
    named = {n: s for n, s in meta_graph.signature_def.items() if s.outputs and n[:2] != "__"}
    signature = named.get("serving_default")
    if signature is None and len(named) == 1:
        signature = next(iter(named.values()))
    if signature is None:
        raise GraphError(
            f"{path}: a SavedModel without the signature 'serving_default' "
            f"(has {', '.join(sorted(named)) or 'none'}); "
            "save it with tf.saved_model.save(model, folder, signatures=function)"
        )
    outputs = tuple(info.name for _, info in sorted(signature.outputs.items()))
    return _of_meta_graph(meta_graph, path, outputs)


def _of_meta_graph(meta_graph: Any, path: Path, outputs: tuple[str, ...] = ()) -> TensorflowFile:
    if not _is_graph(meta_graph.graph_def):
        raise GraphError(f"{path}: parses, but holds no TensorFlow graph; export it again")
    _drop_weights(meta_graph.graph_def)
    return TensorflowFile(path, meta_graph.graph_def, outputs, dict(_trains(meta_graph)))


def _trains(meta_graph: Any) -> Iterator[tuple[str, bool]]:
    """Of each variable that a file names, whether it is trained: TensorFlow 1's way, then 2's."""
    collections = meta_graph.collection_def
    for name in ("variables", "trainable_variables"):
        for row in collections[name].bytes_list.value if name in collections else ():
            variable = message("VariableDef")()
            try:
                variable.ParseFromString(row)
            except DecodeError:  # some library's own variables: the file says nothing of them
                continue
            yield variable.variable_name.partition(":")[0], name == "trainable_variables"
    for saved in meta_graph.object_graph_def.nodes:
        if saved.variable.name:
            yield saved.variable.name, saved.variable.trainable


def _drop_weights(graph: Any) -> None:
    """Forget the values of all but small tensors."""
    for node in (*graph.node, *(n for f in graph.library.function for n in f.node_def)):
        if "value" in node.attr and node.attr["value"].tensor.ByteSize() > _KEPT_BYTES:
            for name in _NUMBERS:
                node.attr["value"].tensor.ClearField(name)
