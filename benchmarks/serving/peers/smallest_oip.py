"""The least that can answer the Open Inference Protocol with ONNX Runtime in Python.

Nothing is checked, logged or counted; the model runs in the event loop. What any such server
costs, whatever else it does.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort

from presage.serving.oip.messages import (
    SERVICE_NAME,
    ModelInferRequest,
    ModelInferResponse,
    message,
)

Output = message("ModelInferResponse.InferOutputTensor")


async def serve(port: int, path: str) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    async def infer(request: bytes, _context: Any) -> bytes:
        message = ModelInferRequest.FromString(request)
        shape = tuple(message.inputs[0].shape)
        rows = np.frombuffer(message.raw_input_contents[0], "<f4").reshape(shape)
        quantiles = session.run(None, {"features": rows})[0]
        return ModelInferResponse(
            model_name=message.model_name,
            outputs=[Output(name="quantiles", datatype="FP32", shape=quantiles.shape)],
            raw_output_contents=[quantiles.tobytes()],
        ).SerializeToString()

    server = grpc.aio.server()
    handlers: dict[str, Any] = {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
