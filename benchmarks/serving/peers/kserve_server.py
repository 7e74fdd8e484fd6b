"""KServe's Python SDK: a custom model, as its documentation says how."""

from __future__ import annotations

import sys
from typing import Any

import onnxruntime as ort

GRPC_PORT, HTTP_PORT, NAME, PATH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
del sys.argv[1:]  # kserve reads the command line when it is imported

from kserve import InferOutput, InferResponse, Model, ModelServer  # noqa: E402


class OnnxModel(Model):
    """ONNX model on ONNX Runtime, in the event loop."""

    def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = ort.InferenceSession(PATH, options, providers=["CPUExecutionProvider"])
        self.ready = True
        return True

    def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        rows = payload.inputs[0].as_numpy()
        quantiles = self.session.run(None, {"features": rows})[0]
        output = InferOutput("quantiles", list(quantiles.shape), "FP32")
        output.set_data_from_numpy(quantiles)
        return InferResponse(payload.id, self.name, [output])


model = OnnxModel(NAME)
model.load()
ModelServer(http_port=HTTP_PORT, grpc_port=GRPC_PORT, enable_latency_logging=False).start([model])
