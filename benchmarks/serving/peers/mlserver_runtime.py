"""MLServer: a custom runtime, as its documentation says how."""

from __future__ import annotations

import onnxruntime as ort
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxRuntime(MLModel):
    """ONNX model at the settings' ``uri``."""

    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = self.settings.parameters.uri
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        quantiles = self.session.run(None, {"features": rows})[0]
        output = NumpyCodec.encode_output("quantiles", quantiles)
        return InferenceResponse(id=payload.id, model_name=self.name, outputs=[output])
