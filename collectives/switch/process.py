"""Aggregator as a child process: the compiled one where there is a C compiler."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from presage.collectives.c_build import BuildError
from presage.collectives.switch.build import aggregator_program
from presage.collectives.switch.options import SwitchOptions, token_environment
from presage.errors import ServiceError

Implementation = Literal["auto", "c", "python"]
_START_S = 30.0


def aggregator_command(implementation: Implementation = "auto") -> tuple[list[str], str]:
    """Return the program that starts an aggregator, and why it is not the compiled one.

    Parameters
    ----------
    implementation : str
        "c" or "python", or "auto" for the compiled one if it can be built.

    Returns
    -------
    (list of str, str)
        Words of the command, before the options, and a reason, which is "" for the compiled one.

    Raises
    ------
    ServiceError
        "c" is requested and cannot be built.
    """
    python = [sys.executable, "-m", "presage.collectives.switch.pure_python.server"]
    if implementation == "python":
        return python, "the pure-Python aggregator was requested"
    try:
        return [str(aggregator_program())], ""
    except BuildError as error:
        if implementation == "c":
            raise ServiceError(f"the C aggregator cannot be built: {error}") from error
        return python, f"the C aggregator cannot be built: {error}"


class SwitchProcess:
    """Aggregator that ends with this process.

    Parameters
    ----------
    token : str
        Token that clients need; "" for none.
    prefix : sequence of str
        Words before the command, for example ``ip netns exec NAME``.

    Attributes
    ----------
    host, port : str, int
        Address at which it listens.
    fallback_reason : str
        Why the pure-Python aggregator runs; "" if the compiled one does.

    Raises
    ------
    ServiceError
        It cannot be started, for example because its port is in use.
    """

    def __init__(
        self,
        options: SwitchOptions | None = None,
        *,
        token: str = "",
        implementation: Implementation = "auto",
        prefix: Sequence[str] = (),
    ) -> None:
        options = dataclasses.replace(options or SwitchOptions(), parent=os.getpid())
        command, self.fallback_reason = aggregator_command(implementation)
        self.process = subprocess.Popen(
            [*prefix, *command, *options.arguments()],
            stdout=subprocess.PIPE,
            env={**os.environ, **token_environment(token)},
        )
        self.host, self.port = options.host, self._port()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the aggregator; do nothing if it has ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def _port(self) -> int:
        assert self.process.stdout
        end_s, line = time.monotonic() + _START_S, b""
        while not line.endswith(b"\n"):
            left_s = max(0.0, end_s - time.monotonic())
            ready, _, _ = select.select([self.process.stdout], [], [], left_s)
            part = os.read(self.process.stdout.fileno(), 100) if ready else b""
            if not part:
                self.close()
                raise ServiceError(f"the switch did not start; its status is {self.process.poll()}")
            line += part
        return int(line.split()[1])
