"""Operator graphs against published counts, torch and ONNX."""
