"""The command line. Each command imports what it needs when it runs: ``--help`` is instant."""

from __future__ import annotations

import io
import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from presage import __version__
from presage.cli.command import add_command, group
from presage.cli.extras import how_to_install
from presage.cli.help_text import command_of
from presage.cli.measuring.devices import devices
from presage.cli.measuring.doctor import doctor
from presage.cli.measuring.features import features
from presage.cli.measuring.import_tables import import_tables
from presage.cli.measuring.profile import app as profile_app
from presage.cli.quickstart.quickstart import quickstart
from presage.cli.scheduling.cluster.group import app as cluster_app
from presage.cli.scheduling.inc.group import app as inc_app
from presage.cli.scheduling.kubernetes.group import app as kubernetes_app
from presage.cli.scheduling.simulation.simulate import simulate
from presage.cli.scheduling.simulation.sweep import sweep
from presage.cli.scheduling.slurm.group import app as slurm_app
from presage.cli.scheduling.traces.group import app as trace_app
from presage.cli.serving.drift import drift
from presage.cli.serving.outcomes import app as outcomes_app
from presage.cli.serving.predict import predict
from presage.cli.serving.serve import serve
from presage.cli.serving.token import token
from presage.cli.training.benchmark import ManyFilesCommand, benchmark
from presage.cli.training.elastic.group import app as elastic_app
from presage.cli.training.evaluate import evaluate
from presage.cli.training.models.group import app as models_app
from presage.cli.training.train import train
from presage.errors import PresageError
from presage.pipelines.stages.stage import INTERRUPTED, exit_interrupted
from presage.system.text.printable import error_line
from presage.system.text.terminal import say

_PREDICT, _SCHEDULE = "Predict and serve", "Schedule jobs"
_TRAIN, _MEASURE = "Train and release", "Measure and inspect"

app = group(
    "Predict how deep-learning jobs behave before they run, and schedule them by it.",
    examples="""
    presage quickstart
    presage predict --job model.onnx --device a100
    presage serve --port 50051
    presage simulate --trace examples/trace.csv \\
      --cluster examples/cluster.yaml --policy fifo,srtf
    """,
)
add_command(app, quickstart, panel=_PREDICT)
add_command(app, predict, panel=_PREDICT)
add_command(
    app,
    serve,
    panel=_PREDICT,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
add_command(app, token, panel=_PREDICT)
add_command(app, drift, panel=_PREDICT)
app.add_typer(outcomes_app, name="outcomes", rich_help_panel=_PREDICT)
for _function in (simulate, sweep):
    add_command(app, _function, panel=_SCHEDULE)
app.add_typer(trace_app, name="trace", rich_help_panel=_SCHEDULE)
app.add_typer(cluster_app, name="cluster", rich_help_panel=_SCHEDULE)
app.add_typer(kubernetes_app, name="kubernetes", rich_help_panel=_SCHEDULE)
app.add_typer(slurm_app, name="slurm", rich_help_panel=_SCHEDULE)
app.add_typer(inc_app, name="inc", rich_help_panel=_SCHEDULE)
for _function in (train, evaluate):
    add_command(app, _function, panel=_TRAIN)
add_command(app, benchmark, panel=_TRAIN, cls=ManyFilesCommand)
app.add_typer(elastic_app, name="elastic", rich_help_panel=_TRAIN)
app.add_typer(models_app, name="models", rich_help_panel=_TRAIN)
app.add_typer(profile_app, name="profile", rich_help_panel=_MEASURE)
add_command(app, import_tables, name="import", panel=_MEASURE)
for _function in (features, devices, doctor):
    add_command(app, _function, panel=_MEASURE)


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
    """Exit with typer's own message; a group without a command has printed its help already."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "presage"
    if message := error.format_message():
        see = " See" if message.endswith("?") else "; see"
        _exit_with(f"{message.rstrip('.')}{see} `{command} --help`", error.exit_code)
    sys.exit(error.exit_code)


def _exit_with(line: str, status: int = 1) -> NoReturn:
    sys.stderr.write(f"error: {error_line(line)}\n")
    sys.exit(status)
