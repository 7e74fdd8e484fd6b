"""Options of ``presage cluster submit`` on the order of jobs, and on how long they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from presage.cli.options.common import seconds_of
from presage.errors import InvalidJobError

if TYPE_CHECKING:
    from presage.schedulers.v1 import cluster_pb2 as pb

_ORDER = "Dependencies, arrays and limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """A hold, jobs to wait for, an array of jobs, and a limit of the run time."""

    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB",
            help="Start only when this job, or each of this array, has finished; if it does not, "
            "this one is cancelled. Repeat for several.",
            rich_help_panel=_ORDER,
        ),
    ] = None
    after_any: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JOB",
            help="Start only when this job is over, in whatever way. Repeat for several.",
            rich_help_panel=_ORDER,
        ),
    ] = None
    array: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES",
            help="Submit a job NAME-INDEX for each index, such as 0-9, 1,3,5-7 or 0-15:4; 0-9%4 "
            "runs at most 4 of them at once. PRESAGE_ARRAY_INDEX has the index.",
            rich_help_panel=_ORDER,
        ),
    ] = None
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            show_default="no limit",
            help="Longest time of a run, such as 90s, 30m, 2h or 1d, counted from each start. Then "
            "the job has --grace-s to save its state, and ends.",
            rich_help_panel=_ORDER,
        ),
    ] = None

    hold: Annotated[
        bool,
        typer.Option(
            "--hold",
            help="Do not start it until `presage cluster release`.",
            rich_help_panel=_ORDER,
        ),
    ] = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of the job's message.

        Raises
        ------
        InvalidJobError
            The time limit is 0.
        """
        limit_s = 0.0
        if self.time_limit is not None:
            limit_s = seconds_of(self.time_limit, "--time-limit")
        if self.time_limit is not None and not limit_s:
            raise InvalidJobError("--time-limit 0: must be longer; leave it out for no limit")
        return {
            "after": self.after or (),
            "after_any": self.after_any or (),
            "time_limit_s": limit_s,
            "hold": self.hold,
        }

    def jobs(self, job: pb.Job) -> list[pb.Job]:
        """Return the jobs of the array, or the job itself.

        Raises
        ------
        InvalidJobError
            The indices are not valid.
        """
        from presage.schedulers.live.protocol.job_array import array_jobs, parse_array

        return [job] if self.array is None else array_jobs(job, parse_array(self.array))
