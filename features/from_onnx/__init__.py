"""Extraction of an operator graph from an ONNX file."""
