"""ONNX files for the fuzzers: small models of every way in which the reader goes."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser

from presage.errors import GraphError, InvalidJobError
from presage.features.columns.schema import matrix
from presage.features.device.device import find_device
from presage.features.placement import Placement
from presage.serving.client.job_features import from_onnx
from presage.serving.codec.wire_values import write_job
from tests.fuzzing.messages import file_mutated
from tests.fuzzing.reader import Reader, Sample
from tests.fuzzing.smaller import smaller_messages

_OPSETS = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1, "own" : 1]>'
_MODELS = (
    # A network of images: convolutions, normalization, pooling, a view, a product.
    """net (float[batch, 3, 16, 16] x) => (float[batch, 10] y)
    <float[8, 3, 3, 3] w, float[8] b, float[8] s, float[8] o, float[8] m, float[8] v,
     float[8, 1, 3, 3] d, float[200, 10] f, float[10] g>
    {
      c = Conv<pads = [1, 1, 1, 1], kernel_shape = [3, 3]>(x, w, b)
      n = BatchNormalization(c, s, o, m, v)
      r = Relu(n)
      p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
      k = Conv<group = 8>(p, d)
      a = AveragePool<kernel_shape = [2, 2]>(k)
      t = Pad<mode = "constant">(a, pads)
      h = Flatten(t)
      q = Gemm(h, f, g)
      y = Softmax(q)
    }""",
    # Arithmetic on shapes, as exporters write it.
    """net (float[batch, sequence, 8] x) => (float[batch, n, 4] y)
    {
      s = Shape(x)
      zero = Constant<value_int = 0>()
      one = Constant<value_ints = [1]>()
      b = Gather(s, zero)
      u = Unsqueeze(b, first)
      r = Constant<value = int64[2] {8, 4}>()
      t = Concat<axis = 0>(u, r)
      l = ConstantOfShape<value = float[1] {1.0}>(t)
      e = Reshape(x, t)
      m = Mul(l, e)
      i = Range(zero, b, step)
      f = Cast<to = 1>(i)
      j = Slice(s, one, two, first)
      z = Size(x)
      g = Equal(s, s)
      w = Where(g, s, s)
      p = Expand(f, u)
      q = ReduceProd<keepdims = 0>(s)
      k = Identity(m)
      o = Split<axis = 0, num_outputs = 3>(s)
      y = Add(k, m)
    }""",
    # Attention as it is written out, an embedding, an einsum, a bias.
    """net (int64[batch, 6] ids) => (float[batch, 6, 8] y)
    <float[100, 8] table, float[8, 8] wq, float[8, 8] wk, float[8, 8] wv, float[8] bias>
    {
      x = Gather(table, ids)
      q = MatMul(x, wq)
      k = MatMul(x, wk)
      v = MatMul(x, wv)
      kt = Transpose<perm = [0, 2, 1]>(k)
      half = Constant<value_float = 0.5>()
      qs = Mul(q, half)
      scores = MatMul(qs, kt)
      w = Softmax<axis = -1>(scores)
      d = Dropout(w)
      o = MatMul(d, v)
      e = Einsum<equation = "bij,jk->bik">(o, wq)
      n = LayerNormalization(e, bias, bias)
      g = Gelu(n)
      y = Add(g, bias)
    }""",
    # Recurrent layers and operators of other domains.
    """net (float[batch, 7, 5] x) => (float[batch, 7, 6] y)
    <float[1, 24, 5] w, float[1, 24, 6] r, float[1, 18, 5] gw, float[1, 18, 6] gr,
     float[6, 18] qkv, float[18] qb>
    {
      o, h, c = LSTM<hidden_size = 6>(x, w, r)
      s = Squeeze(o, axes)
      g, gh = GRU<hidden_size = 6>(x, gw, gr)
      a = com.microsoft.Attention<num_heads = 2>(s, qkv, qb)
      m = com.microsoft.MultiHeadAttention<num_heads = 2>(s, s, s)
      u = own.Unknown<alpha = 1.5>(m, a)
      k, kk = TopK(u, two)
      y = Add(u, s)
    }""",
)
_CALLING = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
net (float[batch, 4] x) => (float[batch, 4] y)
<float[4, 4] w>
{
  t = own.twice(x, w)
  y = own.twice(t, w)
}
<domain: "own", opset_import: ["" : 18, "own" : 1]>
twice (a, b) => (c)
{
  d = own.once(a, b)
  c = own.once(d, b)
}
<domain: "own", opset_import: ["" : 18]>
once (a, b) => (c)
{
  m = MatMul(a, b)
  c = Relu(m)
}
"""
_BRANCHING = """<ir_version: 10, opset_import: ["" : 18]>
net (float[batch, 4] x, bool c, int64 n) => (float[batch, 4] y)
{
  y = If(c) <
    then_branch = then () => (float[batch, 4] a) { a = Relu(x) },
    else_branch = other () => (float[batch, 4] a) { a = Sigmoid(x) }
  >
}
"""


_NUMBERS = {"zero": [0], "first": [0], "two": [2], "axes": [1], "pads": [0] * 8}


def _with_constants(model: Any) -> Any:
    """Add weights for undefined inputs of a text model, and the constants that it reads."""
    graph, make = model.graph, onnx.helper.make_tensor
    read = {name for node in graph.node for name in node.input}
    for value in graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        zeros = bytes(4 * math.prod(shape))
        graph.initializer.append(make(value.name, onnx.TensorProto.FLOAT, shape, zeros, raw=True))
    del graph.value_info[:]
    written = {name for node in graph.node for name in node.output}
    for name in sorted(read & _NUMBERS.keys() - written):
        numbers = _NUMBERS[name]
        graph.initializer.append(make(name, onnx.TensorProto.INT64, [len(numbers)], numbers))
    if "step" in read:
        graph.initializer.append(make("step", onnx.TensorProto.INT64, [], [1]))
    return model


def _seeds() -> list[Sample]:
    models = [_with_constants(onnx.parser.parse_model(_OPSETS + text)) for text in _MODELS]
    models += [_with_constants(onnx.parser.parse_model(text)) for text in (_CALLING, _BRANCHING)]
    outside = onnx.ModelProto()
    outside.CopyFrom(models[0])
    weight = outside.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "../../etc/passwd", "offset": "0", "length": "864"}.items():
        weight.external_data.add(key=key, value=value)
    return [Sample(".onnx", model.SerializeToString()) for model in (*models, outside)]


def _parsed(sample: Sample) -> Any:
    return onnx.ModelProto.FromString(sample.content)


def _mutated(sample: Sample, donors: Sequence[Sample], rng: random.Random) -> Sample:
    return file_mutated(sample, donors, rng, _parsed, onnx.ModelProto.SerializeToString)


def read(path: Path) -> None:
    """By the whole way of a user's file: job features, a request's job, feature rows."""
    kinds = zlib.crc32(path.read_bytes())
    job = from_onnx(
        path,
        batch_size=2,
        iterations=10,
        dims={"sequence": 4, "n": 3},
        optimizer=("sgd", "adam")[kinds >> 1 & 1],
        training=bool(kinds & 1),
    )
    write_job(job)
    matrix([Placement(job, find_device("v100"))])


def _smaller(sample: Sample) -> Iterator[Sample]:
    return (
        Sample(sample.suffix, content)
        for content in smaller_messages(onnx.ModelProto, sample.content)
    )


ONNX = Reader(_seeds, _mutated, read, (GraphError, InvalidJobError), _smaller)
