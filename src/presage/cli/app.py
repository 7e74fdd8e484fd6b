"""The command line. The module of a command is imported when the command runs."""

from __future__ import annotations

import io
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from presage import __version__
from presage.cli.command import group
from presage.cli.extras import how_to_install
from presage.cli.help_text import command_of
from presage.cli.lazy_group import lazy_commands
from presage.errors import PresageError
from presage.pipelines.stages.stage import INTERRUPTED, exit_interrupted
from presage.system.text.printable import error_line
from presage.system.text.terminal import say

_COMMANDS = lazy_commands(
    "presage.cli",
    {
        "Predict and serve": {
            "quickstart": "quickstart.quickstart:quickstart",
            "predict": "serving.predict:predict",
            "serve": "serving.serve:serve",
            "token": "serving.token:token",
            "drift": "serving.drift:drift",
            "outcomes": "serving.outcomes:app",
        },
        "Schedule jobs": {
            "simulate": "scheduling.simulation.simulate:simulate",
            "sweep": "scheduling.simulation.sweep:sweep",
            "trace": "scheduling.traces.group:app",
            "cluster": "scheduling.cluster.group:app",
            "kubernetes": "scheduling.kubernetes.group:app",
            "slurm": "scheduling.slurm.group:app",
            "inc": "scheduling.inc.group:app",
        },
        "Train and release": {
            "train": "training.train:train",
            "evaluate": "training.evaluate:evaluate",
            "benchmark": "training.benchmark:benchmark",
            "elastic": "training.elastic.group:app",
            "models": "training.models.group:app",
        },
        "Measure and inspect": {
            "import": "measuring.import_tables:import_tables",
            "features": "measuring.features:features",
            "devices": "measuring.devices:devices",
            "doctor": "measuring.doctor:doctor",
            "profile": "measuring.profile:app",
        },
    },
)

app = group(
    "Predict how deep-learning jobs behave before they run, and schedule them by it.",
    examples="""
    presage quickstart
    presage predict --job model.onnx --device a100
    presage serve --port 50051
    presage simulate --trace examples/trace.csv \\
      --cluster examples/cluster.yaml --policy fifo,srtf
    """,
    commands=_COMMANDS,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        say(f"presage {__version__}")
        raise typer.Exit


@app.callback()
def _presage(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that precede the command."""


def main() -> None:
    """Run the command line; an error is one line, with exit status 1, or 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # the locale may lack characters of names
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command_of(app)(prog_name="presage", standalone_mode=False)
    except (PresageError, OSError) as error:  # such as a full disk
        _exit_with(str(error))
    except TyperException as error:
        _exit_with_usage(error)
    except typer.Abort:
        _exit_with("aborted")
    except ModuleNotFoundError as error:
        line = how_to_install(error)
        if line is None:
            raise
        _exit_with(line)
    if status == INTERRUPTED:  # by a KeyboardInterrupt that typer caught
        sys.stderr.write("interrupted; files are complete\n")
        exit_interrupted()
    sys.exit(status if isinstance(status, int) else 0)


def _exit_with_usage(error: TyperException) -> NoReturn:
    """Exit with typer's own message, which is the help for a group without a command."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "presage"
    message = error.format_message()
    if message.startswith("Usage: "):
        sys.stderr.write(message.rstrip("\n") + "\n")
    elif message := message.replace(": Value error, ", ": "):  # pydantic's prefix
        see = " See" if message.endswith("?") else "; see"
        _exit_with(f"{message.rstrip('.')}{see} `{command} --help`", error.exit_code)
    sys.exit(error.exit_code)


def _exit_with(line: str, status: int = 1) -> NoReturn:
    sys.stderr.write(f"error: {error_line(line)}\n")
    sys.exit(status)
