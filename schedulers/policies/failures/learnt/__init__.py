"""Policy that decides by a learnt scorer of placements, exported as ONNX."""
