"""Release format: ONNX files, manifest, probes, provenance and signature in one folder."""
