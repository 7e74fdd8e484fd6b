"""The command line. Each command imports what it needs when it runs: `--help` is instant."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from presage.cli.extras import how_to_install
from presage.cli.help_text import command_of
from presage.cli.job_source import BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION
from presage.cli.measuring.devices import DevicesFile, device_named
from presage.cli.measuring.devices import devices as devices_command
from presage.cli.measuring.dvc_lock import entered_into_lock
from presage.cli.scheduling.cluster.jobs import app as cluster_app
from presage.cli.scheduling.kubernetes import app as kubernetes_app
from presage.cli.scheduling.simulate import simulate
from presage.cli.scheduling.trace import app as trace_app
from presage.cli.serving.drift import drift
from presage.cli.serving.outcomes import app as outcomes_app
from presage.cli.training.benchmark import ManyFiles, benchmark
from presage.cli.training.models import app as models_app
from presage.errors import PresageError, UnknownDeviceError
from presage.pipelines.stages.stage import INTERRUPTED, leave_interrupted
from presage.serving.client.credentials import read_credentials
from presage.system.address import check_address
from presage.system.printable import error_line
from presage.system.terminal import say

if TYPE_CHECKING:
    from presage.features.device.device import Device
    from presage.serving.predictor.forecasts import PredictionBackend


app = typer.Typer(
    help="Foretell what a deep-learning job will do before it runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models_app, name="models")
app.add_typer(cluster_app, name="cluster")
app.add_typer(kubernetes_app, name="kubernetes")
app.add_typer(outcomes_app, name="outcomes")
app.add_typer(trace_app, name="trace")
app.command(cls=ManyFiles)(benchmark)
app.command("devices")(devices_command)
app.command()(drift)
app.command()(simulate)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="An ONNX file, a TensorFlow graph (.pb, .pbtxt, .meta, a SavedModel's folder), a JSON "
        "file of job features, or module:function returning a torch module and its example "
        "inputs.",
    ),
]
# None where nothing was said: a JSON job has its own, and refuses another batch.
BatchSize = Annotated[
    int | None,
    typer.Option(min=1, show_default=str(BATCH_SIZE), help="Samples a step; not of a JSON job."),
]
Iterations = Annotated[
    int | None,
    typer.Option(min=1, show_default=str(ITERATIONS), help="Steps of the job, a JSON job's too."),
]
KindOfDevice = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="A kind of `presage devices`, by any of its names; this machine's by default.",
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(show_default=OPTIMIZER, help="sgd, adam or adamw; not of a JSON job."),
]
Precision = Annotated[
    str | None,
    typer.Option(show_default=PRECISION, help="fp32, tf32, fp16, bf16 or fp64; not of a JSON job."),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=N, a symbolic dimension of an ONNX file, its position for one without a name; "
        "PLACEHOLDER:AXIS=N, an open one of a TensorFlow graph. Repeat it."
    ),
]


ServerToken = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token for --server."),
]
ServerAuthority = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="PEM", help="Authority of the server's certificate: then encrypted."
    ),
]
FeaturesDir = Annotated[
    Path, typer.Option("--features", help="Folder of feature tables, as `dvc repro` makes them.")
]
ModelsDir = Annotated[Path, typer.Option("--models", help="Folder of trained networks.")]

profile_app = typer.Typer()
app.add_typer(profile_app, name="profile")


@profile_app.callback(invoke_without_command=True)
def profile(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option(help="Folder of the campaign's tables; goes on where it is.")
    ] = Path("data/profiles/local"),
    params: Annotated[
        Path, typer.Option(help="Its section `profile` is what is not said here, if it is there.")
    ] = Path("params.yaml"),
    budget: Annotated[
        str | None,
        typer.Option(show_default="150s", help="Wall time to spend, such as 150s or 9m."),
    ] = None,
    campaign: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML: which jobs and co-locations; instead of params.yaml."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(show_default="local", help="Name recorded in every row.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Measure on the devices of a Ray cluster."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Jobs alone; as many as fit.")] = None,
    colocations: Annotated[int | None, typer.Option(help="Co-locations; as many as fit.")] = None,
    families: Annotated[str | None, typer.Option(help="Comma-separated; all by default.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of every job; as many as there are cores.")
    ] = None,
    window_s: Annotated[
        float | None,
        typer.Option(show_default="1.2", help="Least time that a job alone is stepped."),
    ] = None,
    solo_share: Annotated[
        float | None, typer.Option(show_default="0.5", help="Of the budget, for jobs alone.")
    ] = None,
    seed: Annotated[int | None, typer.Option(show_default="0", help="Random seed.")] = None,
    devices: DevicesFile = None,
) -> None:
    """Measure jobs on this machine's device, alone and co-located; resumable.

    The same as the DVC stage: what is not said here is the campaign file's, or without one
    params.yaml's, then the default.
    """
    if context.invoked_subcommand is not None:
        return
    from presage.pipelines.stages import profile as stage

    said = {
        "params": params,
        "budget-s": None if budget is None else _seconds(budget),
        "campaign-file": campaign,
        "campaign": name,
        "ray": ray,
        "jobs": jobs,
        "colocations": colocations,
        "families": families,
        "threads": threads,
        "window-s": window_s,
        "solo-share": solo_share,
        "seed": seed,
    }
    given = [f"--{name}={value}" for name, value in said.items() if value is not None]
    with entered_into_lock(out):
        stage.main([str(out), *given])


@profile_app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Campaign folders.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Put the campaigns of several hosts into one folder."""
    from presage.cli.render import print_merged
    from presage.pipelines.profiling.campaign.merge import merge as merge_folders

    print_merged(merge_folders(folders, out), out, as_json=as_json)


@app.command()
def features(
    job: Job,
    batch_size: BatchSize = None,
    iterations: Iterations = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    dim: Dim = None,
    device: KindOfDevice = "",
    devices: DevicesFile = None,
    feature_set: Annotated[str, typer.Option("--set", help="published or full.")] = "published",
    as_json: AsJson = False,
) -> None:
    """Show a model's operators and the features made of them."""
    from presage.cli.job_source import read_job
    from presage.cli.render import print_features
    from presage.features.columns.schema import FEATURE_SETS
    from presage.features.device.local_device import detect

    if feature_set not in FEATURE_SETS:
        known = " or ".join(FEATURE_SETS)
        raise typer.BadParameter(f"{feature_set!r} is not {known}", param_hint="--set")
    read = read_job(
        job, batch_size=batch_size, iterations=iterations, optimizer=optimizer,
        precision=precision, dims=dim,
    )  # fmt: skip
    on = device_named(device) if device else detect()
    print_features(read, on, feature_set, as_json=as_json)


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="gavel, gpumemnet, lucid, miso, neusight, parvagpu, pollux, timm or torchvision."
        ),
    ],
    path: Annotated[
        Path, typer.Argument(help="File, folder or .tar.gz of what the source published.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(show_default="data/public/SOURCE", help="Folder of tables to write."),
    ] = None,
    graphs: Annotated[
        bool, typer.Option("--graphs/--no-graphs", help="Trace the jobs' models: features of them.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Read other people's measurements into our tables (docs/importing.md)."""
    from presage.cli.render import print_import
    from presage.pipelines.importers.run import DEFAULT_FOLDER, import_source, shown_graphs

    with shown_graphs(wanted=graphs) as cache:
        summary = import_source(source, path, out or DEFAULT_FOLDER / source, graphs=cache)
    print_import(summary, as_json=as_json)


@app.command()
def predict(
    job: Annotated[list[str], typer.Option(help="As JOB of `presage features`; repeat it.")],
    device: KindOfDevice = "",
    devices: DevicesFile = None,
    server: Annotated[str, typer.Option(help="HOST:PORT; without it the release answers.")] = "",
    token_file: ServerToken = None,
    ca: ServerAuthority = None,
    release: Annotated[
        Path | None,
        typer.Option(
            help="Release folder, without --server; what `presage serve` serves here by default."
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="The jobs share the device: slowdown of each.")
    ] = False,
    batch_size: BatchSize = None,
    iterations: Iterations = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    dim: Dim = None,
    coverage: Annotated[float, typer.Option(help="Of the interval: 0.8 or 0.9.")] = 0.8,
    as_json: AsJson = False,
) -> None:
    """Foretell utilization, memory, step time and runtime of jobs, or their slowdown together."""
    from presage.cli.job_source import read_job
    from presage.cli.render import print_colocation, print_forecasts
    from presage.features.colocation import Colocation
    from presage.features.device.device import Share
    from presage.features.placement import Placement

    jobs = [
        read_job(
            name,
            batch_size=batch_size,
            iterations=iterations,
            optimizer=optimizer,
            precision=precision,
            dims=dim,
        )
        for name in job
    ]
    with _backend(server, release, token_file, ca) as backend:
        on = _device_of(backend, device)
        if together:
            shares = (Share(mode="time-slice"),) * len(jobs)
            colocation = Colocation(on, tuple(jobs), shares)
            answer = backend.predict_interference([colocation], coverage=coverage)[0]
            print_colocation(jobs, answer, on, as_json=as_json)
        else:
            answers = backend.predict([Placement(j, on) for j in jobs], coverage=coverage)
            print_forecasts(jobs, answers, on, as_json=as_json)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> None:
    """Answer predictions over gRPC until SIGTERM or Ctrl-C."""
    # Its options are its own: a serving image has neither typer nor rich.
    from presage.serving.main import main as serve_main

    serve_main(context.args)


@app.command()
def token(
    name: Annotated[str, typer.Argument(help="Name of the caller in logs, quotas and journals.")],
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="predict, report, admin; of a live cluster view, submit, agent, admin; of the "
            "extender bind. Repeat it. Default: predict."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 2027-01-31T12:00:00Z.")
    ] = None,
    run_as: Annotated[
        str | None,
        typer.Option(metavar="ACCOUNT", help="That its jobs run as. Default: NAME."),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="With --role agent: the only node that it may be.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:COUNT", help="Devices that the node may declare. Repeat it."),
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(min=1, help="Jobs that it may have at once, without ended ones.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Size of these jobs together, as submitted.")
    ] = None,
    file: Annotated[
        Path, typer.Option(help="Token file of a server's `--tokens`; a line is appended.")
    ] = Path("tokens"),
) -> None:
    """Make a token for a caller of a server; print it once, and store its hash."""
    from urllib.parse import quote

    from presage.serving.authentication.token_file import add_token

    limits = {
        "expires": expires,
        "run-as": run_as,
        "node": node,
        "devices": ",".join(quote(text, safe=":") for text in device or ()) or None,
        "max-jobs": max_jobs,
        "max-bytes": max_bytes,
    }
    given = {key: str(value) for key, value in limits.items() if value is not None}
    secret = add_token(file, name, role or ["predict"], given)
    say(secret)
    say(f"added {name!r} to {file}; the token above is not stored anywhere", err=True)


@app.command()
def train(
    features_dir: FeaturesDir = Path("data/features"),
    models_dir: ModelsDir = Path("data/models"),
    pretrained: Annotated[
        Path, typer.Option(help="Networks that rows of a GPU go on from.")
    ] = Path("data/pretrained"),
) -> None:
    """Train every predictor by hand (params.yaml; `dvc repro` does it when needed)."""
    from presage.features.quantities.registry import solo_quantities
    from presage.pipelines.stages import train as solo
    from presage.pipelines.stages import train_interference

    told = ["--features", str(features_dir), "--pretrained", str(pretrained)]
    for name in solo_quantities():
        solo.main([name, *told, "--target", str(models_dir / name)])
    told += ["--models", str(models_dir)]
    train_interference.main([*told, "--target", str(models_dir / "interference")])


@app.command()
def evaluate(
    features_dir: FeaturesDir = Path("data/features"),
    models_dir: ModelsDir = Path("data/models"),
    out: Annotated[
        Path, typer.Option(help="Folder of metrics.json and plots; baselines there are reused.")
    ] = Path("data/evaluation"),
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page that shows it all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score the predictors on jobs and families they have not seen, beside the baselines."""
    from presage.cli.render import print_assessment
    from presage.pipelines.evaluation.assessment import assess
    from presage.pipelines.evaluation.report.page import write_report
    from presage.pipelines.stages import evaluate as stage
    from presage.pipelines.stages.stage import check_report_path

    if report is not None:
        check_report_path(report)  # before the minutes that baselines take
    forecasts = stage.read_forecasts(models_dir)
    metrics = stage.metrics_left(out, forecasts)
    if metrics is None:
        metrics = stage.evaluate(*stage.read_features(features_dir), forecasts)
    stage.write_evaluation(metrics, forecasts, out)
    assessment = assess(metrics, forecasts)
    if report is not None:
        write_report(assessment, report)
    print_assessment(assessment, report, as_json=as_json)


@app.command()
def doctor(
    server: Annotated[str, typer.Option(help="HOST:PORT of a server to try.")] = "",
    token_file: ServerToken = None,
    ca: ServerAuthority = None,
    registry: Annotated[str, typer.Option(help="Registry URI to try.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what this machine has: devices, drivers, versions, and whether services answer."""
    from presage.cli.measuring.doctor import diagnose, print_report

    credentials = read_credentials(token_file, ca)
    print_report(diagnose(server, registry, credentials), as_json=as_json)


def _seconds(duration: str) -> float:
    """Seconds of "150", "150s", "9m" or "1h"."""
    number, unit = duration.rstrip("smh"), duration[len(duration.rstrip("smh")) :]
    try:
        return float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]
    except (ValueError, KeyError) as error:
        raise typer.BadParameter(
            f"{duration!r} is not a duration; write 150s or 9m", param_hint="--budget"
        ) from error


@contextmanager
def _backend(
    server: str, release: Path | None, token_file: Path | None, ca: Path | None
) -> Iterator[PredictionBackend]:
    """Yield a client of the server where one is named, else the release in this process.

    Where none is named it is the release that `presage serve` would serve here.
    """
    if server:
        from presage.serving.client.client import PresageClient

        check_address(
            server,
            f"--server {server!r}",
            f"--server {server!r} is no HOST:PORT; write it like 127.0.0.1:50051",
        )
        with PresageClient(server, credentials=read_credentials(token_file, ca)) as client:
            yield client
    else:
        from presage.models.release.release import load_release
        from presage.serving.predictor.predictor import Predictor

        yield Predictor(load_release(release or _served()))


def _served() -> Path:
    from presage.serving.main import default_source

    source = default_source()
    source.mark()
    return source.folder()


def _device_of(backend: PredictionBackend, kind: str) -> Device:
    """Return the device as the backend knows it, else by the catalogue here.

    A server need not know the kinds that the user added: a data sheet is sent with the request.
    """
    if not kind:
        return _this_machine(backend)
    try:
        return backend.device(kind)
    except UnknownDeviceError:
        return device_named(kind)


def _this_machine(backend: PredictionBackend) -> Device:
    """Device of the machine at hand as it was calibrated for the release, else as detected."""
    from presage.features.device.local_device import detect

    here = detect()
    try:
        return backend.device(here.kind)
    except UnknownDeviceError:
        return here


def main() -> None:
    """Run the command line; an error is one line, with exit status 1, or 2 for wrong usage."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a locale that has not all letters of names
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command_of(app)(standalone_mode=False)
    except (PresageError, OSError) as error:  # such as a full disk
        _refuse(str(error))
    except TyperException as error:
        _refuse_usage(error)
    except typer.Abort:
        _refuse("aborted")
    except ModuleNotFoundError as error:
        line = how_to_install(error)
        if line is None:
            raise
        _refuse(line)
    if status == INTERRUPTED:  # typer's, of a KeyboardInterrupt
        sys.stderr.write("interrupted; files are whole\n")
        leave_interrupted()
    sys.exit(status if isinstance(status, int) else 0)


def _refuse_usage(error: TyperException) -> NoReturn:
    """End with typer's own error; a group without a command has printed its help already."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "presage"
    if said := error.format_message():
        _refuse(f"{said.rstrip('.')}; see `{command} --help`", error.exit_code)
    sys.exit(error.exit_code)


def _refuse(line: str, status: int = 1) -> NoReturn:
    sys.stderr.write(f"error: {error_line(line)}\n")
    sys.exit(status)
