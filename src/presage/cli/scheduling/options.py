"""Options that commands of schedulers share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Predictor = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="Source of forecasts: HOST:PORT of a prediction server, a release folder, a folder of "
        "measured tables, or none, which gives each job exclusive devices.",
    ),
]
Risk = Annotated[
    float,
    typer.Option(
        help="Accepted probability that a job exceeds its predicted memory: 0.05, 0.1 or 0.5."
    ),
]
Hazards = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default="the pretrained model",
        help="Hazard model for policies that avoid failing devices.",
    ),
]
AccessLog = Annotated[
    bool, typer.Option("--access-log", help="Log each request and its client as JSON.")
]
