"""Everything of Presage that reads files from outside, by the name that the fuzzers call it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzzing.graph_defs import GRAPH_DEF
from tests.fuzzing.onnx_files import ONNX
from tests.fuzzing.reader import Reader
from tests.fuzzing.releases import RELEASE
from tests.fuzzing.small_files import JOB, OUTCOMES, TOKENS

READERS: Mapping[str, Reader] = {
    "onnx": ONNX,
    "graphdef": GRAPH_DEF,
    "release": RELEASE,
    "job": JOB,
    "tokens": TOKENS,
    "outcomes": OUTCOMES,
}
