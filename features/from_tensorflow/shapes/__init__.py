"""Shape inference for TensorFlow operators."""
