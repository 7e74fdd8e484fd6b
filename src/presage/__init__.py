"""Presage predicts how a deep-learning job behaves before it runs."""

import os

__version__ = "0.1.0"

# ONNX Runtime 1.29 and newer writes a device id into the home folder when it is imported, and sends
# names and hashes of the models that it loads to its vendor. A user's own value wins.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
