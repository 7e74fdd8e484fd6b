"""A switch domain in an emulated network: the software switch, and its arbiter."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.collectives.star_network import StarNetwork
from presage.collectives.switch.options import SwitchOptions
from presage.collectives.switch.process import SwitchProcess
from presage.errors import ServiceError
from presage.serving.authentication.token_file import add_token

_START_S = 60.0
# At 50 Mbit/s a chunk takes 2.6 ms. Sixteen chunks of the default size fill the queue of a link,
# which then drops packets: an AllReduce of 2 MiB took 0.39 s in the median instead of 0.36 s.
_CHUNK_BYTES = 16 << 10
_PRESAGE = (sys.executable, "-m", "presage", "inc")


@dataclass
class IncDomain:
    """Running switch and arbiter of an emulated network.

    Attributes
    ----------
    arbiter : str
        Address of the arbiter.
    token : str
        Token for the arbiter.
    switch : SwitchProcess
        The switch.
    """

    network: StarNetwork
    arbiter: str
    token: str
    switch: SwitchProcess
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start_arbiter(self) -> None:
        """Start the arbiter and wait until it responds.

        Raises
        ------
        ServiceError
            It ended, or does not respond in time.
        """
        host, port = self.arbiter.rsplit(":", 1)
        switch = f"switch={host}:{self.switch.port},mbit={self.network.mbit_per_s:g}"
        words = [
            *self.network.hub_prefix(), *_PRESAGE, "arbiter",
            "--switch", switch, "--host", host, "--port", port, "--allow-remote",
            "--tokens", str(self.folder / "tokens"), "--journal", str(self.folder / "arbiter.db"),
        ]  # fmt: skip
        with (self.folder / "arbiter.log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env=self._environment())
        end_s = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < end_s:
            if self.ask("status", "--json") is not None:
                return
            time.sleep(0.2)
        log_text = (self.folder / "arbiter.log").read_text()
        raise ServiceError(f"the arbiter does not respond: {log_text.strip() or 'no message'}")

    def kill_arbiter(self) -> None:
        """Kill the arbiter; jobs continue."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def ask(self, *words: str) -> Any:
        """Return what :meth:`request` does; None if the command fails."""
        try:
            return self.request(*words)
        except ServiceError:
            return None

    def request(self, *words: str) -> Any:
        """Return the output of ``presage inc`` in this network, parsed if it is JSON.

        Raises
        ------
        ServiceError
            The command fails; the message is its own.
        """
        command = [*self.network.hub_prefix(), *_PRESAGE, *words]
        command += ["--arbiter", self.arbiter, "--token-file", str(self.folder / "token")]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=self._environment()
        )
        if done.returncode:
            raise ServiceError(_last_line(done.stderr) or f"its status is {done.returncode}")
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PRESAGE_SWITCH_TOKEN": self.token}


@contextmanager
def inc_domain(network: StarNetwork, folder: Path, *, slots: int = 1) -> Iterator[IncDomain]:
    """Run a switch and an arbiter at the hub of a network; end them with the block.

    Parameters
    ----------
    folder : Path
        Folder for the journal, tokens and logs of the arbiter.
    slots : int
        Jobs that the switch sums for at a time.

    Raises
    ------
    ServiceError
        One of them cannot be started.
    """
    token = add_token(folder / "tokens", "demo", ["submit", "view"])
    secret = folder / "token"
    secret.touch(mode=0o600)
    secret.write_text(token)
    options = SwitchOptions(
        host=network.hub_address, slots=slots, controlled=True, chunk_bytes=_CHUNK_BYTES
    )
    port = 20_000 + secrets.randbelow(10_000)
    with SwitchProcess(options, token=token, prefix=network.hub_prefix()) as switch:
        domain = IncDomain(network, f"{network.hub_address}:{port}", token, switch, folder)
        try:
            domain.start_arbiter()
            yield domain
        finally:
            if domain.process is not None:
                domain.process.terminate()
                domain.process.wait()


def _last_line(text: str) -> str:
    """Return the error in what a command has printed."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else ""
