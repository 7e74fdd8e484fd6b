"""The operator graph of an ONNX file."""
