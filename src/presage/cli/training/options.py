"""Options that commands of training share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FeaturesFolder = Annotated[
    Path,
    typer.Option(
        "--features", metavar="DIR", help="Folder of feature tables, made by `dvc repro`."
    ),
]
ModelsFolder = Annotated[
    Path, typer.Option("--models", metavar="DIR", help="Folder of trained networks.")
]
RegistryUri = Annotated[
    str,
    typer.Option(
        "--registry",
        metavar="URI",
        show_default="PRESAGE_REGISTRY, else params.yaml",
        help="Model registry, sqlite:///PATH or http(s)://HOST.",
    ),
]
