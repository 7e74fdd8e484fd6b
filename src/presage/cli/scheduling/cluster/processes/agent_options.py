"""Options of ``presage cluster agent``: its node, its devices and the limits of its jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.cli.scheduling.cluster.options import HERE, PANEL, Controller
from presage.cli.scheduling.cluster.processes.node_devices import slots_of, with_addresses
from presage.cli.scheduling.cluster.processes.options import HardShares
from presage.serving.client.credentials import read_credentials
from presage.system.files.data_folder import data_folder

if TYPE_CHECKING:
    from presage.schedulers.live.agent.agent_options import AgentOptions
    from presage.schedulers.live.agent.isolation.job_limits import JobLimits
    from presage.serving.client.credentials import Credentials

MAX_PROCESSES, MAX_OPEN_FILES = 4096, 65_536  # of each job, as JobLimits has them
_LIMITS = "Isolation of jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """Devices of the node."""

    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND=CPUS|gpuN",
            show_default="all GPUs; without GPUs, all processors as one device",
            help="Device of this node: cpu-1=0 is processor 0, h100=gpu0 the first GPU. Repeat for "
            "several devices.",
        ),
    ] = None
    memory_gib: Annotated[
        float | None,
        typer.Option(min=0.01, show_default="all of it", help="Memory of each device, in GiB."),
    ] = None
    hard_shares: HardShares = False
    kernel_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="/dev/kmsg, on nodes with GPUs",
            help="Kernel log to read errors of devices from. Only root may be able to write it.",
        ),
    ] = None
    pci_address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            show_default="as the driver reports them",
            help="PCI address of a device, by which the kernel log names it, such as 0000:3b:00. "
            "Repeat for all devices, in their order.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Limits of the jobs, and what they get from the agent."""

    allow_root_jobs: Annotated[
        bool,
        typer.Option(
            "--allow-root-jobs",
            help="For an agent started by root: run jobs as root if their token has the account "
            "root or none.",
            rich_help_panel=_LIMITS,
        ),
    ] = False
    max_processes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of processes and threads of a job; 0 for no limit. Without a "
            "control group the limit applies to the job's account.",
            rich_help_panel=_LIMITS,
        ),
    ] = MAX_PROCESSES
    max_open_files: Annotated[
        int,
        typer.Option(
            min=0,
            help="Maximum number of open files of each process; 0 for no limit.",
            rich_help_panel=_LIMITS,
        ),
    ] = MAX_OPEN_FILES
    max_memory_gib: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            show_default="that of its processors; on GPUs no limit",
            help="Maximum host memory of a job. It needs a control group.",
            rich_help_panel=_LIMITS,
        ),
    ] = None
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Environment variable of the agent to pass on to jobs, besides PATH, LANG, LC_*, "
            "TZ, LD_LIBRARY_PATH, CUDA*, NVIDIA* and NCCL*. Repeat for several variables.",
            rich_help_panel=_LIMITS,
        ),
    ] = None

    def limits(self) -> JobLimits:
        """Return the limits."""
        from presage.schedulers.live.agent.isolation.job_limits import JobLimits

        memory_bytes = round((self.max_memory_gib or 0.0) * 2**30)
        return JobLimits(self.max_processes, self.max_open_files, memory_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Folders of the agent, and how often it reports."""

    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="agent in data/cluster (in a checkout) or ~/.local/state/presage/cluster",
            help="State folder of the agent, on a local disk.",
        ),
    ] = None
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="checkpoints in the state folder",
            help="Folder for the checkpoints of jobs. Jobs can change nodes if all nodes share it.",
        ),
    ] = None
    heartbeat_s: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=10.0,
            help="Seconds between reports to the controller. After 15 s without a report the node "
            "gets no new jobs.",
        ),
    ] = 5.0

    def folder(self) -> Path:
        """Return the state folder."""
        return self.state or data_folder() / "cluster" / "agent"

    def agent_options(self, name: str, devices: DeviceOptions, jobs: JobOptions) -> AgentOptions:
        """Return the options of the agent.

        Raises
        ------
        ConfigError
            A device does not exist, or the driver cannot be used.
        """
        from presage.schedulers.live.agent.agent_options import AgentOptions

        return AgentOptions(
            name,
            with_addresses(slots_of(devices.device, devices.memory_gib), devices.pci_address),
            self.folder(),
            self.checkpoints or self.folder() / "checkpoints",
            self.heartbeat_s,
            devices.hard_shares,
            jobs.allow_root_jobs,
            jobs.limits(),
            tuple(jobs.pass_env or ()),
            devices.kernel_log,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConnection:
    """Address of the controller and the agent's own credentials, which no user's variables set."""

    controller: Controller = HERE
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the token of this agent.", rich_help_panel=PANEL
        ),
    ] = None
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="PEM",
            help="Certificate authority of the controller. The connection is then encrypted.",
            rich_help_panel=PANEL,
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Certificate of this agent.", rich_help_panel=PANEL),
    ] = None
    key: Annotated[
        Path | None,
        typer.Option(metavar="PEM", help="Private key of --cert.", rich_help_panel=PANEL),
    ] = None

    def credentials(self) -> Credentials:
        """Read the token and the certificates."""
        return read_credentials(self.token_file, self.ca, self.cert, self.key)
