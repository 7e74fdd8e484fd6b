"""Shape inference and inlining by ONNX's own C++ code, in a process that a file may kill.

It was not written for files of strangers: some abort the process that reads them, some take all
its memory (docs/benchmarks/fuzzing.md). So it runs in a child, which is kept for the next file.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import onnx

from presage.errors import GraphError
from presage.features.from_onnx.native_process import ERROR, HEAD, INFER, INLINE, READY
from presage.features.graph.graph_file import MOST_NATIVE_BYTES, MOST_NATIVE_S

_PROCESS = Path(__file__).with_name("native_process.py")
_MOST_TEXT = 500  # of an error, which may tell much of the file


class _Dead(Exception):  # noqa: N818
    """The child ended before it answered."""


class _Refused(Exception):  # noqa: N818
    """ONNX says what is wrong with the model."""


class _Child:
    """The process and its pipes."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            # -P: the folder of the script is no place to import from.
            [sys.executable, "-P", str(_PROCESS), str(MOST_NATIVE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self.end)
        if self._process.stdout is None or self._process.stdout.read(len(READY)) != READY:
            self.end()
            raise GraphError(
                f"{sys.executable} cannot run ONNX in a process of its own; check the installation "
                f"with `{sys.executable} {_PROCESS} {MOST_NATIVE_BYTES} < /dev/null`"
            )

    @property
    def is_ready(self) -> bool:
        """Whether it lives and is this process's own, not that which this one was forked off."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, task: bytes, content: bytes) -> bytes:
        """The answer to a task; raises _Refused or, when the child is no more, _Dead."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        killing = threading.Timer(MOST_NATIVE_S, self._process.kill)
        killing.start()
        try:
            requests.write(HEAD.pack(task, len(content)) + content)
            requests.flush()
            head = answers.read(HEAD.size)
            if len(head) < HEAD.size:
                raise _Dead
            kind, size = HEAD.unpack(head)
            found = answers.read(size)
        except OSError as error:
            raise _Dead from error
        finally:
            killing.cancel()
        if len(found) < size:
            raise _Dead
        if kind == ERROR:
            raise _Refused(found.decode(errors="replace")[:_MOST_TEXT])
        return found

    def end(self) -> None:
        """Kill it, if it is ours to kill."""
        atexit.unregister(self.end)
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.communicate()


_lock = threading.Lock()
_children: list[_Child] = []  # one at most


def infer_shapes(model: Any, path: Path) -> Any:
    """The model with the shapes that ONNX infers.

    Raises
    ------
    GraphError
        Operators and shapes do not fit together, or ONNX does not survive the file.
    """
    return _asked(INFER, model, f"{path}: shape inference failed")


def inline_functions(model: Any, path: Path) -> Any:
    """The model with its own functions' operators in the place of every call.

    Raises
    ------
    GraphError
        Calls and functions do not fit together, or ONNX does not survive the file.
    """
    return _asked(INLINE, model, f"{path}: its functions cannot be put in place")


def _asked(task: bytes, model: Any, failed: str) -> Any:
    with _lock:
        if not (_children and _children[0].is_ready):
            _children[:] = [_Child()]
        try:
            content = _children[0].ask(task, model.SerializeToString())
        except _Refused as error:
            raise GraphError(f"{failed}: {error}; run onnx.checker on the file") from error
        except _Dead as error:
            _children.pop().end()
            raise GraphError(
                f"{failed}: ONNX's own code crashed on it, or took more than {MOST_NATIVE_S:g} s "
                f"or {MOST_NATIVE_BYTES >> 30} GiB; run onnx.checker on the file"
            ) from error
        except BaseException:
            # Interrupted: an answer that still comes would be taken for the next file's.
            _children.pop().end()
            raise
    return onnx.ModelProto.FromString(content)
