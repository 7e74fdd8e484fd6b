"""Runs ONNX's C++ code on what comes in: the child of :mod:`presage.features.from_onnx.native`.

A script that imports nothing of ours. A request is a letter, a length and a model; an answer
likewise, its letter being "m" for a model and "e" for the text of an error.
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

READY = b"r"  # said once, before the first answer
HEAD = struct.Struct("<cQ")
INFER, INLINE, MODEL, ERROR = b"s", b"i", b"m", b"e"


def answer(task: bytes, content: bytes) -> bytes:
    """The model that a task makes of another one."""
    model = onnx.ModelProto.FromString(content)
    if task == INLINE:
        made = onnx.inliner.inline_local_functions(model)
    else:
        made = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return bytes(made.SerializeToString())


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    answers.write(READY)
    answers.flush()
    while head := requests.read(HEAD.size):
        task, size = HEAD.unpack(head)
        try:
            kind, content = MODEL, answer(task, requests.read(size))
        except Exception as error:  # whatever it is, it is the file's: C++ has classes of its own
            lines = str(error).strip().splitlines()
            kind, content = ERROR, (lines or [type(error).__name__])[0].encode(errors="replace")
        answers.write(HEAD.pack(kind, len(content)) + content)
        answers.flush()


def limit(address_space_bytes: int) -> None:
    """Let no file take more memory than that, where the system has such a limit."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; less is allowed already
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))


if __name__ == "__main__":
    limit(int(sys.argv[1]))
    # Whatever C++ prints goes nowhere; the answers have a descriptor of their own.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        serve(sys.stdin.buffer, out)
