"""Save an ONNX file as an MLflow model that ``mlflow models serve`` takes."""

from __future__ import annotations

import sys

import mlflow.onnx
import numpy as np
import onnx
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

source, target, columns = sys.argv[1], sys.argv[2], int(sys.argv[3])
mlflow.onnx.save_model(
    onnx.load(source),
    target,
    signature=ModelSignature(Schema([TensorSpec(np.dtype("float32"), (-1, columns))])),
    onnx_session_options={"intra_op_num_threads": 1, "inter_op_num_threads": 1},
    pip_requirements=["mlflow", "onnxruntime"],
    save_as_external_data=False,
)
