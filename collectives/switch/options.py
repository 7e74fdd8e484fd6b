"""Options of the aggregator, and its command line, which both implementations read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from presage.collectives.switch.protocol import TOKEN_BYTES, token_digest
from presage.errors import ConfigError

TOKEN_VARIABLE = "PRESAGE_SWITCH_TOKEN_SHA256"  # noqa: S105 - the name of a variable
_LIMITS = {
    "port": (0, 65535), "slots": (1, 256), "chunk_bytes": (4, 1 << 20), "window": (1, 1024),
    "max_ranks": (1, 1024), "max_jobs": (1, 4096), "max_connections": (2, 65536),
    "lease_ms": (10, 3_600_000), "fence": (0, 2**63 - 1), "parent": (0, 2**31),
    "controlled": (0, 1), "incarnation": (0, 2**63 - 1),
}  # fmt: skip


@dataclass(frozen=True)
class SwitchOptions:
    """Options of an aggregator.

    Attributes
    ----------
    host, port : str, int
        Address to listen at; port 0 takes a free one.
    slots : int
        Number of jobs whose AllReduces are summed at a time.
    chunk_bytes, window : int
        Bytes of a chunk, and number of chunks that a rank may be ahead of its sums. A slot takes
        ``chunk_bytes * window * (ranks + 1)`` bytes of memory.
    lease_ms : int
        Time without progress after which an AllReduce is refused and its silent ranks are lost.
    fence : int
        Lowest epoch that is accepted at first.
    parent : int
        Process id of the parent with which the aggregator ends; 0 if it does not.
    controlled : bool
        Whether a controller admits jobs. None is admitted before its first admission.
    incarnation : int
        Number of this start, for the controller; 0 takes the nanoseconds of the clock.
    """

    host: str = "127.0.0.1"
    port: int = 0
    slots: int = 1
    chunk_bytes: int = 64 << 10
    window: int = 16
    max_ranks: int = 64
    max_jobs: int = 256
    max_connections: int = 4096
    lease_ms: int = 5000
    fence: int = 0
    parent: int = 0
    controlled: bool = False
    incarnation: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in _LIMITS.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(
                    f"switch: {name}={getattr(self, name)} is out of range; use {low} to {high}"
                )
        if self.chunk_bytes % 4:
            raise ConfigError(f"switch: chunk_bytes={self.chunk_bytes} is no multiple of 4")

    @property
    def lease_s(self) -> float:
        """Lease in seconds."""
        return self.lease_ms / 1000

    def arguments(self) -> list[str]:
        """Return the command line: pairs of ``--name value``."""
        values = {f.name.replace("_", "-"): getattr(self, f.name) for f in fields(self)}
        values["controlled"] = int(self.controlled)
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def parse_arguments(words: Sequence[str]) -> SwitchOptions:
    """Return the options of a command line that :meth:`SwitchOptions.arguments` wrote."""
    values = dict(zip(words[::2], words[1::2], strict=True))
    found = {name.removeprefix("--").replace("-", "_"): text for name, text in values.items()}
    host = found.pop("host", SwitchOptions.host)
    numbers = {name: int(text) for name, text in found.items()}
    controlled = bool(numbers.pop("controlled", 0))
    return SwitchOptions(host=host, controlled=controlled, **numbers)


def token_environment(token: str) -> dict[str, str]:
    """Return the environment variable by which the aggregator gets its token's digest."""
    return {TOKEN_VARIABLE: token_digest(token).hex()}


def token_from_environment() -> bytes:
    """Return the digest of the aggregator's token; zeros if it has none."""
    digest = bytes.fromhex(os.environ.get(TOKEN_VARIABLE, ""))
    return digest if len(digest) == TOKEN_BYTES else bytes(TOKEN_BYTES)
