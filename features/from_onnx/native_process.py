"""Child process of :mod:`presage.features.from_onnx.native`, which runs ONNX's C++ code.

The script imports no module of this project. A request is a letter, a length and a model; so is a
response, with the letter "m" for a model and "e" for the text of an error.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from typing import BinaryIO

import onnx
import onnx.inliner
import onnx.shape_inference

READY = b"r"  # sent once, before the first response
HEAD = struct.Struct("<cQ")
INFER, INLINE, MODEL, ERROR = b"s", b"i", b"m", b"e"


def run_task(task: bytes, content: bytes) -> bytes:
    """Return the model that a task makes of another model."""
    model = onnx.ModelProto.FromString(content)
    if task == INLINE:
        made = onnx.inliner.inline_local_functions(model)
    else:
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return bytes(made.SerializeToString())


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Process requests until there are no more."""
    responses.write(READY)
    responses.flush()
    while head := requests.read(HEAD.size):
        task, size = HEAD.unpack(head)
        try:
            kind, content = MODEL, run_task(task, requests.read(size))
        except Exception as error:  # the cause is the file; C++ raises its own classes
            lines = str(error).strip().splitlines()
            kind, content = ERROR, (lines or [type(error).__name__])[0].encode(errors="replace")
        responses.write(HEAD.pack(kind, len(content)) + content)
        responses.flush()


def limit(address_space_bytes: int) -> None:
    """Limit the memory of this process, if the system supports it."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows, or a lower limit
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))


if __name__ == "__main__":
    limit(int(sys.argv[1]))
    # Discard what C++ prints; responses use a separate descriptor.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out)
