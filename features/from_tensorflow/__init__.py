"""The operator graph of a TensorFlow file, read without TensorFlow."""
