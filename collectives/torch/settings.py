"""Settings of a rank, from environment variables that the launcher sets; all are optional."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from presage.collectives.phases.prior import Prior
from presage.collectives.switch.protocol import MAX_NAME
from presage.errors import ConfigError

AGREEMENTS = ("in_band", "two_phase")
_FORECAST = ("step_time_s", "gradient_bytes", "step_time_interval_s")
_DEFAULT_JOB = "TORCHELASTIC_RUN_ID"  # set by torchrun


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one rank.

    Attributes
    ----------
    arbiter : str
        ``host:port`` of the arbiter, or "" to run everything by ring.
    token : str
        Token of the arbiter.
    ca, cert, key : str
        PEM files for an arbiter with TLS: its certificate authority, and the certificate of the
        client with its private key. "" for none.
    job, node : str
        Name of the job at arbiter and switch, and name of this machine.
    agreement : str
        How ranks agree on views: ``in_band`` or ``two_phase``.
    min_bytes, max_bytes : int
        Sizes of tensors that may use the switch.
    step_time_s, gradient_bytes, step_time_interval_s : optional
        Forecast of the job; see ``Prior``.
    job_token : str
        Secret that the ranks of this start of the job share.
    """

    arbiter: str = ""
    token: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    job: str = ""
    node: str = ""
    agreement: str = "in_band"
    min_bytes: int = 64 << 10
    max_bytes: int = 1 << 30
    step_time_s: float | None = None
    gradient_bytes: int | None = None
    step_time_interval_s: tuple[float, float] | None = None
    job_token: str = ""

    def __post_init__(self) -> None:
        if self.agreement not in AGREEMENTS:
            raise ConfigError(
                f"PRESAGE_INC_AGREEMENT={self.agreement!r} is unknown; "
                f"use {' or '.join(AGREEMENTS)}"
            )
        if not 0 < self.min_bytes <= self.max_bytes:
            raise ConfigError(
                f"PRESAGE_INC_MIN_BYTES={self.min_bytes} and PRESAGE_INC_MAX_BYTES="
                f"{self.max_bytes} are no range of sizes; use 0 < minimum <= maximum"
            )
        if bool(self.cert) != bool(self.key):
            raise ConfigError("set both PRESAGE_INC_CERT and PRESAGE_INC_KEY, or neither")
        for name in ("ca", "cert", "key"):
            file = getattr(self, name)
            if file and not Path(file).is_file():
                raise ConfigError(f"PRESAGE_INC_{name.upper()}={file!r}: no such file")
        self.prior()

    def prior(self) -> Prior | None:
        """Return the forecast of the job, or None if there is none.

        Raises
        ------
        ConfigError
            It has an invalid value, or lacks one.
        """
        if all(getattr(self, name) is None for name in _FORECAST):
            return None
        if self.step_time_s is None or self.gradient_bytes is None:
            raise ConfigError(
                "a forecast needs both PRESAGE_INC_STEP_TIME_S and PRESAGE_INC_GRADIENT_BYTES; "
                "set both, or unset all of them, with PRESAGE_INC_STEP_TIME_INTERVAL_S"
            )
        try:
            return Prior(self.step_time_s, self.gradient_bytes, self.step_time_interval_s)
        except ValueError as error:
            name, _, problem = str(error).partition("=")
            raise ConfigError(f"PRESAGE_INC_{name.upper()}={problem}") from None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings in ``PRESAGE_INC_*``.

        Raises
        ------
        ConfigError
            A variable has an invalid value.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            name = f"PRESAGE_INC_{field.name.upper()}"
            if text := environment.get(name, ""):
                values[field.name] = _PARSERS.get(field.name, _text)(name, text)
        values.setdefault("node", os.uname().nodename)
        job = values.get("job") or environment.get(_DEFAULT_JOB, "")
        return cls(**{**values, "job": _job_name(job), "job_token": secrets.token_hex(16)})

    def shared(self) -> dict[str, Any]:
        """Return what rank 0 decides for all ranks."""
        names = ("job", "agreement", "min_bytes", "max_bytes", "job_token", *_FORECAST)
        return {name: getattr(self, name) for name in names}

    def with_shared(self, values: Mapping[str, Any]) -> Settings:
        """Return these settings with what rank 0 decided."""
        interval = values["step_time_interval_s"]  # a list, as JSON has no tuples
        return replace(self, **{**values, "step_time_interval_s": interval and tuple(interval)})


def _text(name: str, text: str) -> str:
    return text


def _bytes(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is no number of bytes") from None


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is no number of seconds, such as 0.31") from None


def _interval(name: str, text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"{name}={text!r} is no interval; give LOW,HIGH in seconds, such as 0.28,0.35"
        ) from None
    return low, high


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "min_bytes": _bytes,
    "max_bytes": _bytes,
    "step_time_s": _seconds,
    "gradient_bytes": _bytes,
    "step_time_interval_s": _interval,
}


def _job_name(text: str) -> str:
    """Return a name that a switch accepts; a random one if there is none."""
    name = re.sub(r"[^A-Za-z0-9._:/-]", "-", text)[:MAX_NAME]
    return f"job-{secrets.token_hex(8)}" if name in ("", "none") else name
