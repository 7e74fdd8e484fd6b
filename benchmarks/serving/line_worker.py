"""A process that answers one JSON object a line: measuring happens there, and nothing else does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Sequence
from typing import Any, Self

from benchmarks.serving.processes import on


class LineWorker:
    """Script on a core that responds to lines; a context manager."""

    def __init__(
        self, command: Sequence[str], *, cores: Collection[int], env: dict[str, str]
    ) -> None:
        self._process = subprocess.Popen(
            [*on(cores), *command],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended; its output is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
