"""TensorFlow files for the fuzzers: GraphDefs, binary and text, SavedModels and .meta files."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from presage.errors import GraphError, InvalidJobError
from presage.features.columns.schema import matrix
from presage.features.device.device import find_device
from presage.features.from_tensorflow.messages import message
from presage.features.placement import Placement
from presage.serving.client.job_features import from_tensorflow
from presage.serving.codec.wire_values import write_job
from tests.features.from_tensorflow.tensorflow_examples import (
    const,
    function,
    graph,
    node,
    placeholder,
    saved_model,
    weight,
)
from tests.fuzzing.messages import file_mutated
from tests.fuzzing.reader import Reader, Sample
from tests.fuzzing.smaller import smaller_messages

_KINDS = {".pb": "GraphDef", ".pbtxt": "GraphDef", ".meta": "MetaGraphDef"}
_SAVED = "/saved_model.pb"  # by its name, not by the end of it
_WRITTEN = Path(__file__).parents[1] / "features/from_tensorflow/files"


def _images() -> Any:
    return graph(
        placeholder("x", None, 16, 16, 3),
        weight("w", 3, 3, 3, 8), weight("d", 3, 3, 8, 2), weight("f", 1024, 10), weight("b", 10),
        weight("s", 16),
        node("c", "Conv2D", "x", "w/read", strides=[1, 1, 1, 1], padding="SAME"),
        node("k", "DepthwiseConv2dNative", "c", "d/read", strides=[1, 2, 2, 1], padding="SAME"),
        node("n", "FusedBatchNormV3", "k", "s/read", "s/read", "s/read", "s/read"),
        node("r", "Relu", "n:0"),
        node("p", "MaxPool", "r", ksize=[1, 1, 1, 1], strides=[1, 1, 1, 1], padding="VALID"),
        node("t", "Reshape", "p", "to"), const("to", [-1, 1024]),
        node("m", "MatMul", "t", "f/read"),
        node("y", "BiasAdd", "m", "b/read"),
    )  # fmt: skip


def _arrays() -> Any:
    return graph(
        placeholder("x", None, 6, 4),
        const("zero", 0), const("one", 1), const("two", 2), const("axes", [1]),
        const("margins", np.array([[0, 0], [1, 1], [0, 0]])), const("times", [1, 2, 1]),
        const("begin", [0, 0, 0]), const("size", [-1, 2, 4]), const("ends", [0, 3, 4]),
        const("steps", [1, 1, 1]), const("perm", [0, 2, 1]),
        node("shape", "Shape", "x"),
        node("part", "StridedSlice", "shape", "vzero", "vone", "vone", shrink_axis_mask=1),
        const("vzero", [0]), const("vone", [1]),
        node("count", "Range", "zero", "part", "one"),
        node("many", "Fill", "shape", "one"),
        node("sum", "Prod", "shape", "vzero"),
        node("packed", "Pack", "part", "one", "two"),
        node("pad", "Pad", "x", "margins"),
        node("tile", "Tile", "x", "times"),
        node("slice", "Slice", "x", "begin", "size"),
        node("cut", "StridedSlice", "x", "begin", "ends", "steps", begin_mask=1, end_mask=1),
        node("turn", "Transpose", "x", "perm"),
        node("wide", "ExpandDims", "x", "one"),
        node("narrow", "Squeeze", "wide", squeeze_dims=[1]),
        node("parts", "Split", "one", "x", num_split=3),
        node("single", "Unpack", "x", axis=1, num=6),
        node("joined", "ConcatV2", "parts:0", "parts:2", "one"),
        node("rows", "GatherV2", "x", "axes", "one"),
        node("best", "TopKV2", "x", "two"),
        node("hot", "OneHot", "count", "two", "one", "zero"),
        node("mean", "Mean", "x", "axes", keep_dims=True),
        node("ein", "Einsum", "x", "turn", equation="bij,bjk->bik"),
        node("stitch", "DynamicStitch", "vzero", "vone", "vone", "vone"),
        node("bat", "BatchMatMulV2", "x", "turn"),
        node("add", "AddN", "x", "narrow"),
        node("loss", "SoftmaxCrossEntropyWithLogits", "x", "slice"),
    )  # fmt: skip


def _loops() -> Any:
    body = function(
        "body", ["i", "most", "h", "list"],
        node("next", "AddV2", "i", "by"), const("by", 1),
        node("item", "TensorListGetItem", "list", "i", "none", element_dtype="DT_FLOAT"),
        const("none", [5, 4]),
        node("new", "Tanh", "h"),
        returns={"a": "next:z:0", "b": "most", "c": "new:y:0", "d": "list"},
    )  # fmt: skip
    inner = function("inner", ["v"], node("r", "Relu", "v"), returns={"o": "r:activations:0"})
    outer = function(
        "outer", ["v"],
        node("call", "PartitionedCall", "v", f="inner"),
        node("e", "Exp", "call:output:0"),
        returns={"o": "e:y:0"}, runs="e",
    )  # fmt: skip
    return graph(
        placeholder("x", None, 5, 4),
        const("start", 0), const("most", 5), const("items", [5, 4]),
        node("list", "TensorListFromTensor", "x", "items", element_dtype="DT_FLOAT"),
        node("h", "StatefulPartitionedCall", "x", f="outer"),
        node("loop", "While", "start", "most", "h", "list", body="body", cond="body"),
        node("y", "Identity", "loop:2"),
        functions=(body, inner, outer),
    )  # fmt: skip


def _meta() -> Any:
    made = message("MetaGraphDef")()
    made.graph_def.CopyFrom(_images())
    for name in ("variables", "trainable_variables"):
        row = message("VariableDef")(variable_name="w:0").SerializeToString()
        made.collection_def[name].bytes_list.value.append(row)
    made.object_graph_def.nodes.add().variable.name = "w"
    return made


def _seeds() -> list[Sample]:
    graphs = [_images(), _arrays(), _loops()]
    saved = saved_model(_loops(), inputs="x:0", outputs="y:0", signature="serving_default")
    return [
        *(Sample(".pb", made.SerializeToString()) for made in graphs),
        *(Sample(".pbtxt", text_format.MessageToString(made).encode()) for made in graphs),
        Sample(".meta", _meta().SerializeToString()),
        Sample(_SAVED, saved.SerializeToString()),
        *(Sample(".pb", (_WRITTEN / f"{name}.pb").read_bytes())
          for name in ("frozen", "training_adam", "training_momentum")),
        Sample(_SAVED, (_WRITTEN / "perceptron" / "saved_model.pb").read_bytes()),
    ]  # fmt: skip


def _kind(suffix: str) -> Any:
    return message(_KINDS.get(suffix, "SavedModel"))


def _parsed(sample: Sample) -> Any:
    if sample.suffix == ".pbtxt":
        return text_format.Parse(sample.content.decode(), _kind(sample.suffix)())
    return _kind(sample.suffix).FromString(sample.content)


def _mutated(sample: Sample, donors: Sequence[Sample], rng: random.Random) -> Sample:
    def written(made: Any) -> bytes:
        if sample.suffix == ".pbtxt":
            return text_format.MessageToString(made).encode()
        content: bytes = made.SerializeToString()
        return content

    return file_mutated(sample, donors, rng, _parsed, written)


def read(path: Path) -> None:
    """By the whole way of a user's file: job features, a request's job, feature rows."""
    kinds = zlib.crc32(path.read_bytes())
    job = from_tensorflow(
        path,
        batch_size=2,
        iterations=10,
        dims={"loop": 3},
        optimizer=("sgd", "adam")[kinds >> 1 & 1],
        training=bool(kinds & 1),
    )
    write_job(job)
    matrix([Placement(job, find_device("v100"))])


def _smaller(sample: Sample) -> Iterator[Sample]:
    if sample.suffix != ".pbtxt":
        for content in smaller_messages(_kind(sample.suffix), sample.content):
            yield Sample(sample.suffix, content)


GRAPH_DEF = Reader(_seeds, _mutated, read, (GraphError, InvalidJobError), _smaller)
