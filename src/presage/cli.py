"""The command line. Each command imports what it needs when it runs: `--help` is instant."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from presage.benchmark_cli import ManyFiles, benchmark
from presage.extras import how_to_install
from presage.features.errors import PresageError, UnknownDeviceError
from presage.job_source import BATCH_SIZE, ITERATIONS, OPTIMIZER, PRECISION
from presage.models_cli import app as models_app
from presage.pipelines.stage import INTERRUPTED, leave_interrupted

if TYPE_CHECKING:
    from presage.features.device import Device
    from presage.serving.forecasts import PredictionBackend
    from presage.serving.server import RunningServer


# What comes with Presage, in its checkout.
PRETRAINED = Path("data/pretrained/release")

app = typer.Typer(
    help="Foretell what a deep-learning job will do before it runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(models_app, name="models")
app.command(cls=ManyFiles)(benchmark)

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
    seed: Annotated[int | None, typer.Option(show_default="0")] = None,
) -> None:
    """Measure jobs on this machine's device, alone and co-located; resumable.

    The same as the DVC stage: what is not said here is the campaign file's, or without one
    params.yaml's, then the default.
    """
    if context.invoked_subcommand is not None:
        return
    from presage.pipelines import profile as stage

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
    stage.main([str(out), *given])


@profile_app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Campaign folders.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    as_json: AsJson = False,
) -> None:
    """Put the campaigns of several hosts into one folder."""
    from presage.pipelines.merge import merge as merge_folders
    from presage.render import print_merged

    print_merged(merge_folders(folders, out), out, as_json=as_json)


@app.command()
def features(
    job: Job,
    batch_size: BatchSize = None,
    iterations: Iterations = None,
    optimizer: Optimizer = None,
    precision: Precision = None,
    dim: Dim = None,
    device: Annotated[str, typer.Option(help="Kind of device; this machine's by default.")] = "",
    feature_set: Annotated[str, typer.Option("--set", help="published or full.")] = "published",
    as_json: AsJson = False,
) -> None:
    """Show a model's operators and the features made of them."""
    from presage.features.device import detect, find_device
    from presage.features.schema import FEATURE_SETS
    from presage.job_source import read_job
    from presage.render import print_features

    if feature_set not in FEATURE_SETS:
        known = " or ".join(FEATURE_SETS)
        raise typer.BadParameter(f"{feature_set!r} is not {known}", param_hint="--set")
    read = read_job(
        job, batch_size=batch_size, iterations=iterations, optimizer=optimizer,
        precision=precision, dims=dim,
    )  # fmt: skip
    on = find_device(device) if device else detect()
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
    from presage.pipelines.importers.run import DEFAULT_FOLDER, import_source, shown_graphs
    from presage.render import print_import

    with shown_graphs(wanted=graphs) as cache:
        summary = import_source(source, path, out or DEFAULT_FOLDER / source, graphs=cache)
    print_import(summary, as_json=as_json)


@app.command()
def predict(
    job: Annotated[list[str], typer.Option(help="As JOB of `presage features`; repeat it.")],
    device: Annotated[str, typer.Option(help="Kind of device; this machine's by default.")] = "",
    server: Annotated[str, typer.Option(help="HOST:PORT; without it the release answers.")] = "",
    release: Annotated[
        Path | None,
        typer.Option(
            help="Release folder, without --server; the newest of this checkout by default."
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
    from presage.features.colocation import Colocation
    from presage.features.device import Share
    from presage.features.placement import Placement
    from presage.job_source import read_job
    from presage.render import print_colocation, print_forecasts

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
    with _backend(server, release or _newest()) as backend:
        on = backend.device(device) if device else _this_machine(backend)
        if together:
            shares = (Share(mode="time-slice"),) * len(jobs)
            colocation = Colocation(on, tuple(jobs), shares)
            answer = backend.predict_interference([colocation], coverage=coverage)[0]
            print_colocation(jobs, answer, on, as_json=as_json)
        else:
            answers = backend.predict([Placement(j, on) for j in jobs], coverage=coverage)
            print_forecasts(jobs, answers, on, as_json=as_json)


@app.command()
def serve(
    release: Annotated[Path | None, typer.Option(help="Release folder to serve.")] = None,
    registry: Annotated[
        str, typer.Option(help="Registry URI: serve its champion instead of a folder.")
    ] = "",
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any free one.")] = 50051,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen beyond loopback, without encryption.")
    ] = False,
) -> None:
    """Answer predictions over gRPC until SIGTERM or Ctrl-C.

    Without --release and --registry the champion of this checkout's registry is served, or before
    there is any the release that comes with Presage.
    """
    from presage.models.registry_uri import configured_uri, peek_champion
    from presage.models.release import load_release
    from presage.serving.server import serve as serve_release

    if release is not None and registry:
        raise typer.BadParameter("give either --release DIR or --registry URI")
    if release is None and not registry:
        if peek_champion(configured_uri()) is None:
            release = PRETRAINED
        else:
            registry = configured_uri()
    folder = release if release is not None else _download_champion(registry)
    served = load_release(folder)

    def say(running: RunningServer) -> None:
        typer.echo(f"serving release {served.release_id} on {running.target}")

    serve_release(served, host=host, port=port, allow_remote=allow_remote, on_ready=say)


@app.command()
def train(
    features_dir: Annotated[Path, typer.Option("--features")] = Path("data/features"),
    models_dir: Annotated[Path, typer.Option("--models")] = Path("data/models"),
    pretrained: Annotated[
        Path, typer.Option(help="Networks that rows of a GPU go on from.")
    ] = Path("data/pretrained"),
) -> None:
    """Train the four predictors by hand (params.yaml; `dvc repro` does it when needed)."""
    from presage.models.targets import TARGETS
    from presage.pipelines import train as solo
    from presage.pipelines import train_interference

    told = ["--features", str(features_dir), "--pretrained", str(pretrained)]
    for name in TARGETS:
        solo.main([name, *told, "--target", str(models_dir / name)])
    told += ["--models", str(models_dir)]
    train_interference.main([*told, "--target", str(models_dir / "interference")])


@app.command()
def evaluate(
    features_dir: Annotated[Path, typer.Option("--features")] = Path("data/features"),
    models_dir: Annotated[Path, typer.Option("--models")] = Path("data/models"),
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
    from presage.pipelines import evaluate as stage
    from presage.pipelines.assessment import assess
    from presage.pipelines.report.page import check_report_path, write_report
    from presage.render import print_assessment

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
    registry: Annotated[str, typer.Option(help="Registry URI to try.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what this machine has: devices, drivers, versions, and whether services answer."""
    from presage.doctor import diagnose, print_report

    print_report(diagnose(server, registry), as_json=as_json)


def _newest() -> Path:
    """The newest release that was made here, whether promoted or not, else the pretrained one."""
    made = Path("data/release")
    return made if made.is_dir() else PRETRAINED


def _seconds(duration: str) -> float:
    """Seconds of "150", "150s", "9m" or "1h"."""
    number, unit = duration.rstrip("smh"), duration[len(duration.rstrip("smh")) :]
    try:
        return float(number) * {"": 1, "s": 1, "m": 60, "h": 3600}[unit]
    except (ValueError, KeyError) as error:
        raise typer.BadParameter(f"{duration!r} is not a duration; write 150s or 9m") from error


@contextmanager
def _backend(server: str, release: Path) -> Iterator[PredictionBackend]:
    """The server where one is named, else the release in this process."""
    if server:
        from presage.serving.client import PresageClient

        with PresageClient(server) as client:
            yield client
    else:
        from presage.models.release import load_release
        from presage.serving.predictor import Predictor

        yield Predictor(load_release(release))


def _this_machine(backend: PredictionBackend) -> Device:
    """Device of the machine at hand as it was calibrated for the release, else as detected."""
    from presage.features.device import detect

    here = detect()
    try:
        return backend.device(here.kind)
    except UnknownDeviceError:
        return here


def _download_champion(registry: str) -> Path:
    """The champion's folder, laid down beside the others in the user's cache.

    A folder that is there and whole is taken as it is, without MLflow.
    """
    from presage.features.errors import RegistryError
    from presage.models.registry_uri import peek_champion
    from presage.models.release import load_release, put_in_place

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "presage/releases"
    champion = peek_champion(registry)
    if champion is not None and _is_whole(cache / champion):
        return cache / champion
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache, prefix=".") as partial:
            _fetch_champion(registry, Path(partial) / "release")
            # Its own id: the champion may have changed since, or could not be peeked at.
            folder = cache / load_release(Path(partial) / "release").release_id
            if not _is_whole(folder):
                put_in_place(Path(partial) / "release", folder)
    except OSError as error:
        raise RegistryError(
            f"{cache}: the champion cannot be laid down there ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that may be written"
        ) from error
    return folder


def _is_whole(folder: Path) -> bool:
    from presage.features.errors import ReleaseError
    from presage.models.release import load_release

    try:
        return load_release(folder).release_id == folder.name
    except ReleaseError:
        return False


def _fetch_champion(registry: str, folder: Path) -> None:
    """Download in a process of its own: MLflow's 175 MB would stay in the server's for ever."""
    from presage.features.errors import RegistryError

    show = ["models", "show", "champion", "--registry", registry, "--download", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "presage", *show, "--json"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if said.startswith("error: "):
        raise RegistryError(said.removeprefix("error: "))
    raise RegistryError(
        f"{registry}: the champion cannot be downloaded ({said}); "
        "try `presage models show champion --registry ...`"
    )


def main() -> None:
    """Entry point: one line for an error a person can mend (exit 1), 130 for Ctrl-C."""
    try:
        app(standalone_mode=True)
    except (PresageError, OSError) as error:  # such as a full disk
        _refuse(str(error))
    except ModuleNotFoundError as error:
        line = how_to_install(error)
        if line is None:
            raise
        _refuse(line)
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's, of a KeyboardInterrupt
            sys.stderr.write("interrupted; files are whole\n")
            leave_interrupted()
        raise


def _refuse(line: str) -> NoReturn:
    sys.stderr.write(f"error: {line}\n")
    sys.exit(1)
