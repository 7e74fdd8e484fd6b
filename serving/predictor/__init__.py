"""In-process predictor: a release on ONNX Runtime."""
