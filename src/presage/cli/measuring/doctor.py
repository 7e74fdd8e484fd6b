"""``presage doctor``: devices, drivers and packages of this machine, and services."""

from __future__ import annotations

from typing import Annotated

import typer

from presage.cli.command import command
from presage.cli.options.common import Json
from presage.cli.options.server import ServerOptions


@command(
    examples="""
    presage doctor
    presage doctor --server gpu-head:50051 --registry http://mlflow:5000
    """
)
def doctor(
    server: ServerOptions,
    registry: Annotated[
        str, typer.Option(metavar="URI", help="Address of a model registry.")
    ] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check this machine's devices, drivers and packages, and whether services respond."""
    from presage.cli.measuring import diagnosis

    findings = diagnosis.diagnose(server.server, registry, server.credentials())
    diagnosis.print_report(findings, as_json=as_json)
