"""Options that describe a simulation: workload, predictor, ground truth and failures."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from presage.errors import ConfigError

if TYPE_CHECKING:
    from presage.schedulers.simulator.scenario import Scenario

_PREDICTIONS, _TRUTH, _FAILURES = "Predictions", "Ground truth", "Failures and checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """Fields of a scenario, without its policy."""

    trace: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Trace of jobs, in a format of `presage trace show`."),
    ]
    cluster: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Cluster: YAML with nodes: [{name: n0, devices: 8, kind: v100}, ...], or a CSV "
            "file of openb.",
        ),
    ]
    elastic: Annotated[
        str,
        typer.Option(
            metavar="LEAST,MOST",
            help="Let each job run on LEAST to MOST times the devices that it requests, for the "
            "policy elastic. By default only jobs with a range in the trace do.",
        ),
    ] = ""
    quotas: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Quotas and weights of users: YAML with default: {devices: 8} and users: {ana: "
            "{devices: 4, weight: 2}, ...}.",
        ),
    ] = None
    load: Annotated[float, typer.Option(help="Factor on the arrival rate of jobs.")] = 1.0
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0
    pass_interval_s: Annotated[
        float,
        typer.Option(
            help="Seconds between two scheduling passes, for large clusters; 0 for a decision at "
            "each event.",
        ),
    ] = 0.0
    predictor: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Source of forecasts: oracle (the true values), none, table (the measurements in "
            "--measured), a release folder, or HOST:PORT of a prediction server.",
            rich_help_panel=_PREDICTIONS,
        ),
    ] = "oracle"
    risk: Annotated[
        float,
        typer.Option(
            help="Accepted probability that a job exceeds its predicted memory: 0.05, 0.1 or 0.5.",
            rich_help_panel=_PREDICTIONS,
        ),
    ] = 0.1
    noise: Annotated[
        float,
        typer.Option(
            help="Standard deviation of log-normal noise on forecasts.",
            rich_help_panel=_PREDICTIONS,
        ),
    ] = 0.0
    bias: Annotated[
        float,
        typer.Option(help="Median of the noise factors.", rich_help_panel=_PREDICTIONS),
    ] = 1.0
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Tables of solo and co-located measurements. Co-located jobs then slow each "
            "other down as measured.",
            rich_help_panel=_TRUTH,
        ),
    ] = None
    draw_models: Annotated[
        bool,
        typer.Option(
            "--draw-models",
            help="Draw the model of every job from --measured, even if the trace names one.",
            rich_help_panel=_TRUTH,
        ),
    ] = False
    shares: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="Effect of compute shares with --measured: none, caps as in MPS, or weights as "
            "in control groups.",
            rich_help_panel=_TRUTH,
        ),
    ] = "none"
    scaling: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="Speed-up of jobs by their number of devices: linear, or measured, as in the "
            "scale_out table of --measured.",
            rich_help_panel=_TRUTH,
        ),
    ] = "linear"
    faults: Annotated[
        str,
        typer.Option(
            metavar="FILE|MTBF,MTTR|NAME=VALUE,...",
            help="Failures: a file; mean times between failures of a node and to its repair, in "
            "days; or parameters of failures of devices, such as mtbf=30,mttr=0.5,rate_spread=1.",
            rich_help_panel=_FAILURES,
        ),
    ] = ""
    from_day: Annotated[
        float,
        typer.Option(help="First day of the failure file to use.", rich_help_panel=_FAILURES),
    ] = 0.0
    checkpoint_interval_s: Annotated[
        float,
        typer.Option(
            show_default="no checkpoints",
            help="Seconds between checkpoints of a job.",
            rich_help_panel=_FAILURES,
        ),
    ] = math.inf
    checkpoint_cost_s: Annotated[
        float,
        typer.Option(help="Seconds to write a checkpoint.", rich_help_panel=_FAILURES),
    ] = 0.0
    restart_s: Annotated[
        float,
        typer.Option(help="Seconds to restart a job from a checkpoint.", rich_help_panel=_FAILURES),
    ] = 0.0
    resize_s: Annotated[
        float,
        typer.Option(
            help="Seconds for which an elastic job stops when it grows or shrinks.",
            rich_help_panel=_FAILURES,
        ),
    ] = 0.06
    resize_after_failure_s: Annotated[
        float,
        typer.Option(
            help="Seconds for which an elastic job stops when some of its devices fail.",
            rich_help_panel=_FAILURES,
        ),
    ] = 0.5
    hazards: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default="the pretrained model",
            help="Hazard model for policies that avoid failing devices.",
            rich_help_panel=_FAILURES,
        ),
    ] = ""
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="Log an invalid action of a policy and continue, instead of failing.",
            rich_help_panel=_FAILURES,
        ),
    ] = False

    def scenario(self, policy: str) -> Scenario:
        """Return the scenario under a policy.

        Raises
        ------
        ConfigError
            A value is invalid, or an option is missing that another one needs.
        """
        from presage.schedulers.simulator.scenario import Scenario

        return Scenario(policy=policy, **asdict(self))

    def check(self) -> None:
        """Raise if --from-day is given without a file of failures."""
        if self.from_day and not Path(self.faults).is_file():
            raise ConfigError(
                f"--from-day {self.from_day:g} needs a file of failures; give --faults FILE, or "
                "leave it out"
            )
