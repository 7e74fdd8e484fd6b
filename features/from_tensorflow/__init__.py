"""Extraction of an operator graph from a TensorFlow file, without TensorFlow."""
