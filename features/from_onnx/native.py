"""Shape inference and inlining by ONNX's own C++ code, in a child process.

That code is not written for untrusted files: some files abort the process that reads them, some
exhaust its memory (docs/benchmarks/fuzzing.md). The child is reused for the next file.
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
from presage.features.graph.graph_file import MAX_NATIVE_BYTES, MAX_NATIVE_S

_PROCESS = Path(__file__).with_name("native_process.py")
_MAX_TEXT = 500  # of an error, which may quote much of the file


class _Dead(Exception):  # noqa: N818
    """The child ended before it responded."""


class _Refused(Exception):  # noqa: N818
    """ONNX rejected the model; the message says why."""


class _Child:
    """The child process and its pipes."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            # -P: do not import from the script's folder.
            [sys.executable, "-P", str(_PROCESS), str(MAX_NATIVE_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        atexit.register(self.end)
        if self._process.stdout is None or self._process.stdout.read(len(READY)) != READY:
            self.end()
            raise GraphError(
                f"{sys.executable} cannot run ONNX in a child process; check the installation "
                f"with `{sys.executable} {_PROCESS} {MAX_NATIVE_BYTES} < /dev/null`"
            )

    @property
    def is_ready(self) -> bool:
        """Return whether the child runs, and belongs to this process and not to its parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def request(self, task: bytes, content: bytes) -> bytes:
        """Send a task and return the response; raise _Refused, or _Dead if the child ended."""
        requests, responses = self._process.stdin, self._process.stdout
        assert requests is not None
        assert responses is not None
        killing = threading.Timer(MAX_NATIVE_S, self._process.kill)
        killing.start()
        try:
            requests.write(HEAD.pack(task, len(content)) + content)
            requests.flush()
            head = responses.read(HEAD.size)
            if len(head) < HEAD.size:
                raise _Dead
            kind, size = HEAD.unpack(head)
            found = responses.read(size)
        except OSError as error:
            raise _Dead from error
        finally:
            killing.cancel()
        if len(found) < size:
            raise _Dead
        if kind == ERROR:
            raise _Refused(found.decode(errors="replace")[:_MAX_TEXT])
        return found

    def end(self) -> None:
        """Kill the child, if this process started it."""
        atexit.unregister(self.end)
        if self._owner != os.getpid():
            return
        self._process.kill()
        self._process.communicate()


_lock = threading.Lock()
_children: list[_Child] = []  # at most one


def infer_shapes(model: Any, path: Path) -> Any:
    """Return the model with the shapes that ONNX infers.

    Raises
    ------
    GraphError
        Operators and shapes are inconsistent, or the file crashes ONNX.
    """
    return _run_task(INFER, model, f"{path}: shape inference failed")


def inline_functions(model: Any, path: Path) -> Any:
    """Return the model with every function call replaced by the function's operators.

    Raises
    ------
    GraphError
        Calls and functions are inconsistent, or the file crashes ONNX.
    """
    return _run_task(INLINE, model, f"{path}: inlining its functions failed")


def _run_task(task: bytes, model: Any, failed: str) -> Any:
    with _lock:
        if not (_children and _children[0].is_ready):
            _children[:] = [_Child()]
        try:
            content = _children[0].request(task, model.SerializeToString())
        except _Refused as error:
            raise GraphError(f"{failed}: {error}; run onnx.checker on the file") from error
        except _Dead as error:
            _children.pop().end()
            raise GraphError(
                f"{failed}: ONNX's code crashed, or exceeded {MAX_NATIVE_S:g} s or "
                f"{MAX_NATIVE_BYTES >> 30} GiB; run onnx.checker on the file"
            ) from error
        except BaseException:
            # Interrupted: a late response would be taken for that of the next file.
            _children.pop().end()
            raise
    return onnx.ModelProto.FromString(content)
