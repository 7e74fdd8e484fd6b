"""``presage profile``: measure jobs on this machine or on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from presage.cli.command import add_command, command, examples_of
from presage.cli.measuring.dvc_lock import entered_into_lock
from presage.cli.options.common import Json, seconds_of
from presage.cli.options.devices import DevicesFile


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """What a campaign measures; its fields are the options of the DVC stage."""

    params: Annotated[
        Path,
        typer.Option(help="Parameter file. Its section `profile` has the values not given here."),
    ] = Path("params.yaml")
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default="150s", help="Wall time to spend, such as 150s or 9m."
        ),
    ] = None
    campaign_file: Annotated[
        Path | None,
        typer.Option(
            "--campaign",
            metavar="FILE",
            help="YAML file with the jobs and co-locations to measure, instead of --params.",
        ),
    ] = None
    campaign: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", show_default="local", help="Name of the campaign in each row."
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Measure on every device of a Ray cluster."),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(show_default="as many as fit", help="Jobs to measure without co-location."),
    ] = None
    colocations: Annotated[
        int | None, typer.Option(show_default="as many as fit", help="Co-locations to measure.")
    ] = None
    families: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME...]", show_default="all", help="Families of the job zoo to use."
        ),
    ] = None
    threads: Annotated[
        int | None, typer.Option(show_default="the number of cores", help="Threads of each job.")
    ] = None
    window_s: Annotated[
        float | None,
        typer.Option(show_default="1.2", help="Minimum seconds to measure a solo job for."),
    ] = None
    solo_share: Annotated[
        float | None,
        typer.Option(show_default="0.5", help="Fraction of the budget to spend on solo jobs."),
    ] = None
    seed: Annotated[int | None, typer.Option(show_default="0", help="Random seed.")] = None
    anchor: Annotated[
        bool,
        typer.Option(
            "--anchor",
            help="Measure a few fixed jobs, about two minutes a precision, that tell a server how "
            "a new device differs from its forecasts.",
        ),
    ] = False

    def stage_arguments(self) -> list[str]:
        """Return the arguments of the DVC stage; values that are not given are left to it."""
        values = {
            "params": self.params,
            "budget-s": None if self.budget is None else seconds_of(self.budget, "--budget"),
            "campaign-file": self.campaign_file,
            "campaign": self.campaign,
            "ray": self.ray,
            "jobs": self.jobs,
            "colocations": self.colocations,
            "families": self.families,
            "threads": self.threads,
            "window-s": self.window_s,
            "solo-share": self.solo_share,
            "seed": self.seed,
        }
        given = [f"--{name}={value}" for name, value in values.items() if value is not None]
        return [*given, "--anchor"] if self.anchor else given


@command(
    examples="""
    # Measure for nine minutes on this machine
    presage profile --budget 9m --out data/profiles/mine

    # Measure a new device for a server, about two minutes a precision
    presage profile --anchor --out data/profiles/anchor

    # Measure your own models, on every device of a Ray cluster
    presage profile --campaign my-jobs.yaml --ray auto --out data/profiles/mine
    """
)
def profile(
    context: typer.Context,
    campaign: CampaignOptions,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the tables.")
    ] = Path("data/profiles/local"),
    devices: DevicesFile = None,
) -> None:  # fmt: skip
    """Measure training jobs on this machine's device, solo and co-located.

    A campaign that was interrupted resumes when it is started again with the same --out. Values
    come from the options, else from the campaign file or the parameter file, else from the
    defaults. `dvc repro` runs the same stage.
    """
    if context.invoked_subcommand is not None:
        return
    from presage.pipelines.stages import profile as stage

    with entered_into_lock(out):
        stage.main([str(out), *campaign.stage_arguments()])


@command(examples="presage profile merge data/host-a data/host-b --out data/profiles/both")
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Campaign folders.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
    as_json: Json = False,
) -> None:
    """Merge the campaigns of several hosts into one folder."""
    from presage.cli.output.tables_written import print_merged
    from presage.pipelines.profiling.campaign.merge import merge as merge_folders

    print_merged(merge_folders(folders, out), out, as_json=as_json)


app = typer.Typer()
app.callback(invoke_without_command=True, epilog=examples_of(profile))(profile)
add_command(app, merge)
