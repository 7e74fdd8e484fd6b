"""Training jobs that run at the same time around one switch, each rank on a machine of its own."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from presage.collectives.demo.training_job import TrainingJob
from presage.collectives.star_network import StarNetwork
from presage.errors import ServiceError

_READY_S, _END_S = 240.0, 120.0
_PORT = 29500  # of the store of each job, at the machine of its first rank


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job did in the measured time.

    Attributes
    ----------
    iteration_s : float
        Mean time of an iteration.
    counts : dict of str to int
        AllReduces of the whole run, as ``statistics`` of the backend.
    losses : list of float
        Loss of each iteration at rank 0.
    is_equal : bool
        Whether the parameters of all ranks are bitwise equal at the end.
    """

    job: TrainingJob
    iteration_s: float
    counts: dict[str, int]
    losses: list[float]
    is_equal: bool

    @property
    def inc_share(self) -> float:
        """Share of the AllReduces that the switch summed."""
        return self.counts["summed"] / max(1, self.counts["numbered"])


@dataclass
class _Ranks:
    """Processes of one job."""

    job: TrainingJob
    processes: list[subprocess.Popen[str]] = field(default_factory=list)


def run_jobs(
    network: StarNetwork,
    jobs: Sequence[TrainingJob],
    seconds: float,
    *,
    arbiter: str = "",
    token: str = "",
    with_arbiter: Callable[[TrainingJob], bool] = lambda _: True,
    before_end: Callable[[], None] = lambda: None,
    logs: Path,
) -> list[JobResult]:
    """Run jobs together and measure them once all of them train.

    Parameters
    ----------
    seconds : float
        Time to measure.
    arbiter : str
        Address of the arbiter; "" runs everything by ring.
    with_arbiter : callable
        Whether a job uses it.
    before_end : callable
        Called when the time is over, while the jobs still run.
    logs : Path
        Folder for what the ranks write to their standard error.

    Raises
    ------
    ServiceError
        A rank ended, or did not become ready in time.
    """
    with ExitStack() as stack:
        running, first_host = [], 0
        for job in jobs:
            variables = {"PRESAGE_INC_JOB": job.name, "PRESAGE_INC_TOKEN": token}
            if arbiter and with_arbiter(job):
                variables["PRESAGE_INC_ARBITER"] = arbiter
            ranks = stack.enter_context(_started(network, job, first_host, variables, logs))
            running.append(ranks)
            first_host += job.ranks
        for ranks in running:
            _read(ranks.processes[0], _READY_S)
        begin_s = time.monotonic()
        time.sleep(seconds)
        end_s = time.monotonic()
        before_end()
        for ranks in running:
            ranks.processes[0].terminate()
        return [_result(ranks, begin_s, end_s) for ranks in running]


def throughput(results: Sequence[JobResult], reference: Sequence[JobResult]) -> list[float]:
    """Return the throughput of each job over that of the reference run."""
    return [r.iteration_s / own.iteration_s for own, r in zip(results, reference, strict=True)]


@contextmanager
def _started(
    network: StarNetwork, job: TrainingJob, first_host: int, variables: dict[str, str], logs: Path
) -> Iterator[_Ranks]:
    ranks = _Ranks(job)
    try:
        for rank in range(job.ranks):
            host = first_host + rank
            environment = {
                **os.environ, **variables,
                "MASTER_ADDR": network.address(first_host), "MASTER_PORT": str(_PORT),
                "RANK": str(rank), "WORLD_SIZE": str(job.ranks), "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "eth0",
            }  # fmt: skip
            words = [sys.executable, "-m", "presage.collectives.demo.training_job", job.to_json()]
            with (logs / f"{job.name}.{rank}.log").open("w") as log:
                ranks.processes.append(
                    subprocess.Popen(
                        [*network.host_prefix(host), *words],
                        stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
                    )
                )  # fmt: skip
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()
            process.communicate()


def _read(process: subprocess.Popen[str], timeout_s: float) -> Any:
    """Return the next line of a rank."""
    stdout: IO[str] | None = process.stdout
    assert stdout is not None
    ready, _, _ = select.select([stdout], [], [], timeout_s)
    line = stdout.readline() if ready else ""
    if not line:
        raise ServiceError(f"a rank ended early or was not ready within {timeout_s:g} s")
    return json.loads(line)


def _result(ranks: _Ranks, begin_s: float, end_s: float) -> JobResult:
    rows = [_read(process, _END_S) for process in ranks.processes]
    ends_s = [end for end in rows[0]["ends_s"] if begin_s <= end <= end_s]
    if len(ends_s) < 2:
        raise ServiceError(f"job {ranks.job.name} did less than two iterations in the time")
    iteration_s = statistics.fmean(b - a for a, b in zip(ends_s, ends_s[1:], strict=False))
    is_equal = len({row["digest"] for row in rows}) == 1
    return JobResult(ranks.job, iteration_s, rows[0]["counts"], rows[0]["losses"], is_equal)
