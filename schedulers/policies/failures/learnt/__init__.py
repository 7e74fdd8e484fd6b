"""Policy that decides by a learned scorer of placements, exported as ONNX."""
