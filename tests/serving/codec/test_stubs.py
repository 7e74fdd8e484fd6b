import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import pytest

import presage

SRC = Path(presage.__file__).parents[1]
V1 = Path("presage/serving/v1")


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="needs grpcio-tools")
def test_the_committed_stubs_are_those_of_the_proto(tmp_path):
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    proto = SRC / V1 / "prediction.proto"

    run([sys.executable, "-m", "grpc_tools.protoc", f"-I{SRC}", *outs, str(proto)], check=True)

    for name in ("prediction_pb2.py", "prediction_pb2.pyi", "prediction_pb2_grpc.py"):
        assert (tmp_path / V1 / name).read_text() == (SRC / V1 / name).read_text(), name
