"""The processes of a live cluster: ``presage cluster up``, ``controller`` and ``agent``."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from presage.cli.scheduling.cluster.options import check_controller
from presage.cli.scheduling.cluster.tokens import make_tokens, own_state
from presage.errors import ConfigError, ServiceError
from presage.schedulers.live.forecast_source import (
    check_forecast,
    is_service,
    live_forecaster,
    service_of,
)
from presage.schedulers.live.process_supervisor import ProcessSpec, supervising
from presage.serving.client.credentials import read_credentials
from presage.system.data_folder import data_folder
from presage.system.terminal import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from presage.schedulers.live.agent.slot import Slot
    from presage.schedulers.v1 import cluster_pb2 as pb

T = TypeVar("T")
MAX_PROCESSES, MAX_OPEN_FILES = 4096, 65_536  # of each job: JobLimits says the same
_IN = "under data/cluster in a checkout, else under ~/.local/state/presage"
HOST, PORT = "127.0.0.1", 50061
_OF_KUBERNETES = "gang"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
CONTROLLING = "controlling at"  # what a controller says once it listens
HOST_STEP_BYTES, GPU_STEP_BYTES = 2**30, 2**28  # that found memory is told by

Forecast = Annotated[
    str,
    typer.Option(
        metavar="WHO",
        help="HOST:PORT of a service, the folder of a release or of a campaign's tables, or none: "
        "whole devices.",
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        help="sharing, with parameters: sharing:check_s=10; or any of `presage simulate`, but gang."
    ),
]
Risk = Annotated[
    float, typer.Option(help="Of a job taking more memory than is foretold: 0.05, 0.1, 0.5.")
]
HardShares = Annotated[
    bool,
    typer.Option(
        "--hard-shares",
        help="A share is all that a job gets; by default it may use what its neighbours leave.",
    ),
]
Lease = Annotated[
    float,
    typer.Option(min=2.0, help="How long jobs run on where no controller is heard of."),
]
Secret = Annotated[Path | None, typer.Option(metavar="FILE", help="With the token to show.")]
Authority = Annotated[Path | None, typer.Option(metavar="PEM", help="Who vouches for the other.")]


def add_processes(app: typer.Typer) -> None:
    """Put the commands of processes into the command line's."""
    for command in (up, controller, agent):
        app.command()(command)


def controller(
    journal: Annotated[
        str | None,
        typer.Option(
            envvar="PRESAGE_JOURNAL",
            metavar="URL",
            show_default=f"controller.db {_IN}",
            help="A file, sqlite:///FILE, or postgresql://USER@HOST/DATABASE; its password as in "
            "PGPASSWORD or ~/.pgpass.",
        ),
    ] = None,
    journal_key: Annotated[
        Path | None,
        typer.Option(
            envvar="PRESAGE_JOURNAL_KEY",
            metavar="FILE",
            help="Key that its records are checked and environments encrypted with; made when "
            f"missing. By default FILE.key; for PostgreSQL journal.key {_IN}.",
        ),
    ] = None,
    policy: Policy = "sharing",
    forecast: Forecast = "none",
    risk: Risk = 0.1,
    lease_s: Lease = 120.0,
    keep_ended: Annotated[
        int, typer.Option(min=0, metavar="JOBS", help="That are over, and are still listed.")
    ] = 10_000,
    host: Annotated[str, typer.Option(help="To listen on.")] = HOST,
    port: Annotated[int, typer.Option(help="To listen on; 0 for any that is free.")] = PORT,
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Listen beyond loopback without TLS."),
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="Certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="Its key.")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(metavar="PEM", help="Ask for certificates that this one signed.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask for tokens (presage token). Without it and --client-ca only the user that "
            "starts the controller may do more than read.",
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log each call and its caller as JSON.")
    ] = False,
    forecast_token_file: Secret = None,
    forecast_ca: Authority = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, metavar="PORT", help="Answer Prometheus there."),
    ] = None,
) -> None:
    """Take jobs, and choose nodes for them, until SIGTERM or Ctrl-C; jobs go on without it."""
    import uvloop

    from presage.schedulers.live.controller.cluster_metrics import ClusterMetrics
    from presage.schedulers.live.controller.controller import Controller, Leases
    from presage.schedulers.live.controller.controller_server import run_controller
    from presage.schedulers.live.controller.journal.journal import Journal
    from presage.serving.server.log import log_as_json
    from presage.serving.server.prometheus_metrics import Metrics, serve_metrics
    from presage.serving.server_options import Options, Tls

    if (tls_cert is None) != (tls_key is None) or (client_ca and not tls_cert):
        raise ServiceError("--tls-cert and --tls-key go together, and --client-ca with both")
    tls = Tls(tls_cert, tls_key, client_ca) if tls_cert and tls_key else None
    options = Options(
        host=host, port=port, allow_remote=allow_remote, tls=tls, tokens=tokens,
        access_log=access_log,
    )  # fmt: skip
    made, (chosen, sharing) = (
        live_forecaster(forecast, risk, forecast_token_file, forecast_ca),
        _policy(policy),
    )
    log_as_json()
    metrics = Metrics()
    counted = ClusterMetrics(metrics.registry) if metrics_port else None
    stop_metrics = (
        serve_metrics(metrics, options.metrics_host, metrics_port) if metrics_port else None
    )

    async def serve() -> None:
        leases = Leases(lease_s=lease_s, suspect_s=min(15.0, lease_s))
        working = Controller(
            opened, chosen, made, leases, sharing=sharing, most_over=keep_ended, metrics=counted
        )
        await run_controller(working, options, policy, _ready, metrics)

    try:
        with Journal.open(journal or str(_state() / "controller.db"), journal_key) as opened:
            uvloop.run(serve())
    finally:
        if stop_metrics is not None:
            stop_metrics()


def agent(
    node: Annotated[str, typer.Option(help="The node's name.")] = socket.gethostname(),
    controller: Annotated[
        str, typer.Option(envvar="PRESAGE_CLUSTER", metavar="HOST:PORT", help="The controller.")
    ] = f"{HOST}:{PORT}",
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=CPUS|gpuN",
            help="cpu-1=0 is processor 0, h100=gpu0 the first GPU; repeat it. By default this "
            "machine's GPUs, or all of its processors as one device.",
        ),
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(min=0.01, help="Of each device; by default what there is.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(show_default=f"agent {_IN}", help="Folder of its own, on a local disk."),
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="Jobs' checkpoints: one folder that all nodes have. By default local."),
    ] = None,
    forecast: Forecast = "none",
    risk: Risk = 0.1,
    report: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The service that is told how jobs ended."),
    ] = None,
    forecast_token_file: Secret = None,
    forecast_ca: Authority = None,
    hard_shares: HardShares = False,
    allow_root_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-root-jobs",
            help="As root: also run jobs as root, if their token has the account root or none.",
        ),
    ] = False,
    max_processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Processes and threads of each job, or of its account where no control group can "
            "be made; 0 for any number.",
        ),
    ] = MAX_PROCESSES,
    max_open_files: Annotated[
        int, typer.Option(min=0, help="Open files of each process of a job; 0 for any number.")
    ] = MAX_OPEN_FILES,
    max_memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Memory of the node that each job may take, where a control group can be made; by "
            "default that of its processors, and on GPUs any.",
        ),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Variable of the agent's environment that jobs get too; repeat it. By default "
            "PATH, LANG, LC_*, TZ, LD_LIBRARY_PATH, CUDA*, NVIDIA* and NCCL*.",
        ),
    ] = None,
    heartbeat_s: Annotated[
        float,
        typer.Option(
            min=0.1, max=10.0, help="Between reports; after 15 s without one it is given no jobs."
        ),
    ] = 5.0,
    token_file: Secret = None,
    ca: Authority = None,
    cert: Annotated[Path | None, typer.Option(metavar="PEM", help="Its own certificate.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="PEM", help="The certificate's key.")] = None,
) -> None:
    """Run jobs on this node as the controller wants; on SIGTERM or Ctrl-C they go on without it."""
    from presage.schedulers.live.agent.agent import Agent, AgentOptions
    from presage.schedulers.live.agent.controller_connection import serve_node
    from presage.schedulers.live.agent.isolation.job_limits import JobLimits
    from presage.schedulers.live.agent.outcome_outbox import Outbox
    from presage.serving.server.log import log_as_json

    state = state or _state() / "agent"
    made = live_forecaster(forecast, risk, forecast_token_file, forecast_ca)
    second = None if forecast == "none" else made
    outbox = None
    if report is not None:
        shown = read_credentials(forecast_token_file, forecast_ca)
        outbox = Outbox(state, service_of(report, "--report", shown))
    options = AgentOptions(
        node,
        _slots(device, memory_gib),
        state,
        checkpoints or state / "checkpoints",
        heartbeat_s,
        hard_shares,
        allow_root_jobs,
        JobLimits(max_processes, max_open_files, round((max_memory_gib or 0.0) * 2**30)),
        tuple(pass_env or ()),
    )
    check_controller(controller)
    credentials = partial(read_credentials, token_file, ca, cert, key)
    credentials()  # what is wrong with them is said at once
    log_as_json()

    async def serve() -> None:
        running = Agent(options, second, outbox)
        working = asyncio.ensure_future(serve_node(running, controller, credentials))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, working.cancel)
        try:
            await working
        except asyncio.CancelledError:
            return
        finally:
            if running.has_stalled():  # its thread would be waited for, and has no end
                os._exit(1)

    asyncio.run(serve())


def up(
    agents: Annotated[
        int,
        typer.Option(
            min=1, help="Nodes on this machine, each with some of its GPUs, or of its processors."
        ),
    ] = 1,
    policy: Policy = "sharing",
    forecast: Forecast = "none",
    risk: Risk = 0.1,
    lease_s: Lease = 120.0,
    port: Annotated[int, typer.Option(help="Of the controller.")] = PORT,
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.01, help="Of each node's device; by default its part of what there is."),
    ] = None,
    hard_shares: HardShares = False,
    state: Annotated[
        Path | None,
        typer.Option(
            show_default=_IN.removeprefix("under "),
            help="Folder of the journal, the logs and the checkpoints.",
        ),
    ] = None,
) -> None:
    """Run a controller and agents on this machine, until Ctrl-C; one that ends is started again.

    Jobs go on, for as long as their lease is; the next `presage cluster up` finds them again.
    """
    from presage.serving.authentication.listen import resolve_address
    from presage.serving.server_options import Options

    nodes = _nodes(agents, memory_gib)
    check_forecast(forecast, risk)
    _policy(policy)
    presage = [sys.executable, "-m", "presage", "cluster"]
    target = f"{HOST}:{port}"
    state = state or _state()
    with own_state(state):
        resolve_address(Options(host=HOST, port=port))
        tokens = make_tokens(state, port, {f"n{i}": row[2] for i, row in enumerate(nodes)})
        commands: list[tuple[list[str], dict[str, str]]] = [
            (
                [
                    *presage, "controller", "--journal", str(state / "controller.db"), "--policy",
                    policy, "--forecast", forecast, "--risk", str(risk), "--lease-s", str(lease_s),
                    "--port", str(port), "--tokens", str(tokens.file),
                ],
                {},
            )
        ]  # fmt: skip
        for number, (devices, variables, _) in enumerate(nodes):
            name = f"n{number}"
            words = (
                [
                    *presage, "agent", "--node", name, "--controller", target,
                    "--state", str(state / name), "--checkpoints", str(state / "checkpoints"),
                    "--token-file", str(tokens.of_node[name]),
                    *devices, "--forecast", forecast, "--risk", str(risk),
                    *(("--report", forecast) if is_service(forecast) else ()),
                    *(("--hard-shares",) if hard_shares else ()),
                    *(("--allow-root-jobs",) if os.geteuid() == 0 else ()),
                ]
            )  # fmt: skip
            commands.append((words, variables))
        tokens.user.write()  # the port is free: no other controller's token is replaced
        try:
            _run_together(commands, state, target)
        finally:
            tokens.user.remove()


def _state() -> Path:
    """Return the default folder of a cluster's state."""
    return data_folder() / "cluster"


def _ready(target: str) -> None:
    say(f"{CONTROLLING} {target}", err=True)


def _policy(text: str) -> tuple[Any, pb.Sharing | None]:
    """The policy of the controller, and what agents are to go by."""
    from presage.schedulers.policies.registry import POLICIES, policy_of
    from presage.schedulers.policies.sharing.policy import Sharing
    from presage.schedulers.v1 import cluster_pb2 as pb
    from presage.system.known_names import check_known

    name = text.partition(":")[0]
    if name == _OF_KUBERNETES:
        raise ConfigError(
            "--policy gang: gangs over several nodes run on Kubernetes (presage kubernetes); a job "
            "here is on one node"
        )
    check_known([name], [known for known in POLICIES if known != _OF_KUBERNETES], "--policy ")
    found = policy_of(text)
    if not isinstance(found, Sharing):
        return found, None
    settings = found.settings
    return found.of_controller(), pb.Sharing(
        step_milli=settings.step_milli,
        least_milli=settings.least_milli,
        check_s=settings.check_s,
        overcommit=settings.overcommit,
        reserve=settings.reserve,
    )


def _slots(given: Sequence[str] | None, memory_gib: float | None) -> tuple[Slot, ...]:
    from presage.schedulers.live.agent.slot import Slot

    memory_bytes = None if memory_gib is None else round(memory_gib * 2**30)
    if given:
        of_processors = sum("=gpu" not in text for text in given)
        part_bytes = memory_bytes or _host_bytes() // max(1, of_processors)
        slots = tuple(_slot(text, memory_bytes, part_bytes) for text in given)
        wanted = [slot.cuda for slot in slots if slot.cuda is not None]
        absent = sorted({*wanted} - {slot.cuda for slot in _gpus(None)}) if wanted else []
        if absent:
            raise ConfigError(
                f"--device ...=gpu{absent[0]}: the driver shows no such GPU here; see nvidia-smi -L"
            )
        return slots
    gpus = _gpus(memory_bytes)
    if gpus:
        return gpus
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    return (Slot(f"cpu-{len(cpus)}", memory_bytes or _host_bytes(), cpus),)


def _slot(text: str, memory_bytes: int | None, part_bytes: int) -> Slot:
    from presage.cli.measuring.devices import device_named
    from presage.schedulers.live.agent.slot import Slot

    kind, equals, where = text.partition("=")
    if where.startswith("gpu") and where[3:].isdecimal():
        known = memory_bytes or device_named(kind, f"--device {text}").memory_bytes
        return Slot(kind, known, cuda=int(where[3:]))
    if not equals or not all(part.isdecimal() for part in where.split(",")):
        raise ConfigError(f"--device {text!r}: write KIND=0,1 of processors, or KIND=gpu0")
    cpus = tuple(int(part) for part in where.split(","))
    absent = sorted(set(cpus) - os.sched_getaffinity(0))
    if absent:
        raise ConfigError(f"--device {text!r}: this process may not use processor {absent[0]}")
    return Slot(kind, part_bytes, cpus)


def _gpus(memory_bytes: int | None) -> tuple[Slot, ...]:
    try:
        import pynvml
    except ModuleNotFoundError:
        raise ConfigError(
            "the package 'pynvml' is not installed, which finds GPUs; pip install "
            "'presage[cluster]'"
        ) from None
    from presage.features.device.device import device_kind
    from presage.schedulers.live.agent.slot import Slot

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or it has no GPU
        return ()
    try:
        found = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            if not _visible(number, str(pynvml.nvmlDeviceGetUUID(handle))):
                continue
            name = str(pynvml.nvmlDeviceGetName(handle))
            total = _alike(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), GPU_STEP_BYTES)
            found.append(Slot(device_kind(name) or name, memory_bytes or total, cuda=number))
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _visible(number: int, uuid: str) -> bool:
    """Whether this process may use a GPU, by the variable that CUDA goes by."""
    listed = os.environ.get(_VISIBLE)
    return listed is None or not {str(number), uuid}.isdisjoint(listed.split(","))


def _host_bytes() -> int:
    return _alike(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), HOST_STEP_BYTES)


def _alike(found_bytes: int, step_bytes: int) -> int:
    """Devices of a kind have one memory: what kernels and drivers keep of it differs a little."""
    return found_bytes // step_bytes * step_bytes or found_bytes


def _nodes(
    agents: int, memory_gib: float | None
) -> list[tuple[list[str], dict[str, str], dict[str, int]]]:
    """Options of each of several agents on this machine, its variables, and devices by kind."""
    gpus = _gpus(None)
    if gpus:  # of which an agent finds by itself what they are
        memory = [] if memory_gib is None else ["--memory-gib", str(memory_gib)]
        parts = _split(gpus, agents, "GPUs, or processors with CUDA_VISIBLE_DEVICES=''")
        return [
            (
                memory,
                {_VISIBLE: ",".join(str(slot.cuda) for slot in part)},
                dict(Counter(slot.kind for slot in part)),
            )
            for part in parts
        ]
    cpus = _split(sorted(os.sched_getaffinity(0)), agents, "processors")
    gib = memory_gib or _host_bytes() / 2**30 / agents
    return [
        (
            ["--device", f"{kind}={','.join(map(str, of))}", "--memory-gib", f"{gib:.3f}"],
            {},
            {kind: 1},
        )
        for of in cpus
        for kind in [f"cpu-{len(of)}"]
    ]


def _split(devices: Sequence[T], parts: int, what: str) -> list[Sequence[T]]:
    if parts > len(devices):
        raise ConfigError(f"--agents {parts}: give each one of {len(devices)} {what}")
    return [devices[i::parts] for i in range(parts)]


def _run_together(
    commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], state: Path, target: str
) -> None:
    """Run the controller and agents, each with variables and a log file of its own."""
    names = ["controller", *(f"n{i}" for i in range(len(commands) - 1))]
    first, *others = (
        ProcessSpec(name, command, state / f"{name}.log", variables)
        for name, (command, variables) in zip(names, commands, strict=True)
    )
    said = partial(say, err=True)
    with supervising(said) as supervisor:
        # Where another controller has the port, agents would be that one's.
        if supervisor.start_until(first, CONTROLLING):
            for spec in others:
                supervisor.start(spec)
            agents = "1 agent" if len(others) == 1 else f"{len(others)} agents"
            said(f"a controller at {target}, {agents}; Ctrl-C or SIGTERM ends them")
            supervisor.run()
        said("ending controller and agents; jobs go on for their lease")
