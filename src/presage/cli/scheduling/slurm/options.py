"""Options of ``presage slurm``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.scheduling.options import Risk
from presage.errors import ConfigError

if TYPE_CHECKING:
    from presage.schedulers.slurm.bridge.decide import DecisionOptions
    from presage.serving.client.credentials import Credentials

STATE = Path("/var/lib/presage-slurm")

State = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        help="State folder of bridge and watcher. Only SlurmUser needs access to it.",
    ),
]
Lead = Annotated[
    int,
    typer.Option(
        "--lead",
        metavar="MINUTES",
        min=2,
        max=1440,
        help="Least time limit to set. A running job closer to its limit is extended.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Credentials for a prediction server."""

    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token for the prediction server."),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Certificate authority of the prediction server. The connection is then "
            "encrypted.",
        ),
    ] = None

    def credentials(self) -> Credentials:
        """Read the token and the certificate authority."""
        from presage.serving.client.credentials import read_credentials

        return read_credentials(self.token_file, self.ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How forecasts become requests of jobs."""

    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GRES=KIND",
            help="Device kind of GPUs of a GRES type, of all others (gpu=KIND), or of jobs without "
            "GPU (cpu=KIND). Repeat for several types.",
        ),
    ] = None
    quantile: Annotated[
        float,
        typer.Option(help="Quantile of the run time to set as the time limit: 0.9 or 0.95."),
    ] = 0.9
    risk: Risk = 0.1
    lead: Lead = 10
    shards: Annotated[
        int, typer.Option(min=0, help="Shards of each GPU (gres/shard); 0 if there are none.")
    ] = 0
    nice: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            help="Nice value for each doubling of the run time above a minute, so that short jobs "
            "start first; 0 leaves nice unchanged.",
        ),
    ] = 0

    def kinds(self) -> dict[str, str]:
        """Return the device kind by GRES type.

        Raises
        ------
        ConfigError
            There is none, or one is not GRES=KIND.
        """
        from presage.schedulers.slurm.job_note import is_word

        kinds: dict[str, str] = {}
        for text in self.device or ():
            gres, _, kind = text.partition("=")
            if not is_word(kind):
                raise ConfigError(
                    f"--device {text!r}: the kind has characters other than A-Z a-z 0-9 . _ - + :"
                )
            if not gres or not kind or gres in kinds:
                raise ConfigError(
                    f"--device {text!r}: write GRES=KIND, each type once, as in --device a100="
                    "a100-80gb"
                )
            kinds[gres] = kind
        if not kinds:
            raise ConfigError("no --device; name the device kinds, as in --device a100=a100-80gb")
        return kinds

    def decision_options(self) -> DecisionOptions:
        """Return how to decide.

        Raises
        ------
        ConfigError
            The quantile is not within [0.5, 1), or the risk is not within (0, 0.5].
        """
        from presage.schedulers.forecasters.predicted import check_risk
        from presage.schedulers.slurm.bridge.decide import DecisionOptions

        check_risk(self.risk)
        if not 0.5 < self.quantile < 1:
            raise ConfigError(f"quantile={self.quantile}, must be above 0.5 and below 1")
        return DecisionOptions(
            quantile=self.quantile,
            risk=self.risk,
            lead_minutes=self.lead,
            shards_per_gpu=self.shards,
            nice_per_doubling=self.nice,
        )


def prepare_state(folder: Path) -> Path:
    """Create the state folder, with access for its owner only.

    Raises
    ------
    ConfigError
        It cannot be created, or another user can write to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"--state {folder}: {error.strerror}; run as SlurmUser, or name another folder"
        ) from None
    if mode & 0o022:
        raise ConfigError(f"--state {folder}: others may write to it; chmod 700 {folder}")
    return folder


def load_backend(source: str, timeout_s: float, credentials: Credentials) -> Any:
    """Return the predictor of a release folder, or the client of a prediction server.

    Raises
    ------
    ConfigError, ReleaseError
        It is neither a folder with a release nor HOST:PORT.
    """
    from presage.system.text.address import check_address

    if Path(source).is_dir():
        from presage.serving.predictor.predictor import load_predictor

        return load_predictor(Path(source))
    from presage.serving.client.client import PresageClient

    named = f"--predictor {source!r}"
    check_address(
        source, named, f"{named} is unknown; give a release folder or HOST:PORT of a server"
    )
    return PresageClient(source, timeout_s=timeout_s, credentials=credentials)
