"""A real Slurm cluster with job_submit.lua and the epilog, as an administrator installs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from presage.schedulers.slurm.bridge.bridge_server import SOCKET, BridgeServer
from presage.schedulers.slurm.feature_text import FEATURES_VARIABLE, OPTIONS_VARIABLE, to_text
from presage.schedulers.slurm.job_note import JobNote
from presage.schedulers.slurm.site_files import EPILOG, JOB_SUBMIT, site_file
from tests.features import examples
from tests.schedulers.slurm.test_bridge import make_bridge
from tests.support.slurm.cluster import SlurmCluster, missing_slurm, slurm

FEATURES = to_text(examples.features())
GPU = "--gres=gpu:a100:1"
PARTITIONS = (
    "PartitionName=main Nodes=ALL Default=YES DefaultTime=60 MaxTime=1440",
    "PartitionName=open Nodes=ALL",
)

PATIENT_S = 3.0  # deadline of job_submit.lua: on a busy machine an answer may take long

needs_slurm = pytest.mark.skipif(bool(missing_slurm()), reason=missing_slurm() or "installed")


@dataclass
class Site:
    """A cluster, and the state folder of bridge and watcher."""

    cluster: SlurmCluster
    state: Path

    @contextmanager
    def bridge(self, backend: Any = None, **options: Any) -> Iterator[None]:
        """Run a bridge in this process."""
        bridge = make_bridge(self.state, backend, **options)
        with self.answering(bridge.respond):
            yield

    @contextmanager
    def answering(self, respond: Any) -> Iterator[None]:
        """Answer job_submit.lua with a function."""
        with BridgeServer(self.state / SOCKET, respond):
            yield

    def submit(self, *options: str, command: str = "true", features: str = FEATURES, **more) -> int:
        """Submit a job with features; return its id."""
        variables = {FEATURES_VARIABLE: features, OPTIONS_VARIABLE: more.get("choices", "")}
        return self.cluster.submit(command, *options, env=variables)

    def note(self, job_id: int) -> JobNote | None:
        """Return the note in the AdminComment of a job."""
        text = self.cluster.run("scontrol", "show", "job", str(job_id))
        match = re.search(r"AdminComment=(.*)", text)
        return JobNote.parse(match[1]) if match else None

    def asked_ms(self) -> list[float]:
        """Return how long job_submit.lua waited for the bridge, for each job so far."""
        text = (self.cluster.folder / "slurmctld.log").read_text()
        return [float(found) for found in re.findall(r"presage: asked for ([\d.]+) ms", text)]


@contextmanager
def slurm_site(
    folder: Path,
    *,
    speed: float = 1,
    settings: Sequence[str] = (),
    nodes: int = 3,
    gpus: int = 2,
    patient: bool = True,
    variables: Mapping[str, str] | None = None,
    user: str = "root",
) -> Iterator[Site]:
    """Yield a running cluster whose job_submit.lua asks a bridge that is not there yet.

    Parameters
    ----------
    patient : bool
        Whether job_submit.lua waits long for an answer, and asks again at once after a failure.
    """
    state, conf = folder / "presage", folder / "slurm.conf"
    state.mkdir(mode=0o700)
    (state / "ended").mkdir(mode=0o700)
    files: Mapping[str, str] = {name: site_file(name, state, conf) for name in (JOB_SUBMIT, EPILOG)}
    script = files[JOB_SUBMIT]
    if patient:
        script = script.replace("DEADLINE_S = 0.08 ", f"DEADLINE_S = {PATIENT_S * speed:g} ")
        script = script.replace("PAUSE_S = 10 ", "PAUSE_S = 0 ")
    own = ("JobSubmitPlugins=lua", "SlurmctldDebug=debug", f"EpilogSlurmctld={folder / EPILOG}")
    with slurm(
        folder,
        nodes=nodes,
        gpus=gpus,
        speed=speed,
        partitions=PARTITIONS,
        settings=(*own, *settings),
        files={**files, JOB_SUBMIT: script},
        variables=variables,
        user=user,
    ) as cluster:
        yield Site(cluster, state)
