"""The commands of which benchmarks/startup measures the processor time."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from presage.models.release.release_id import content_id

RELEASE = Path("data/pretrained/release")
FUNCTION = "examples.my_model:classifier"  # a function that returns a torch module
REASON = ("--force", "--reason", "benchmark")
START_S = 120.0  # longest start of a cluster

PREDICTION = {
    "--help": ("--help",),
    "devices": ("devices",),
    "features, JSON file": ("features", "JOB"),
    "predict, JSON file": ("predict", "--job", "JOB", "--device", "a100"),
    "predict, torch function, again": ("predict", "--job", FUNCTION, "--device", "a100"),
    "trace show": ("trace", "show", "examples/trace.csv"),
}
REGISTRY = {
    "models list": ("models", "list"),
    "models show": ("models", "show", "champion"),
    "models diff": ("models", "diff", "1", "2"),
    "models trained-on": ("models", "trained-on", "cpu-2"),
    "models history": ("models", "history"),
    "models promote, refused": ("models", "promote", "1"),
}
CHANGES = {
    "models promote": ("models", "promote", "1", *REASON),
    "models rollback": ("models", "rollback", "--reason", "benchmark"),
}
CLUSTER = {
    "cluster ps": ("cluster", "ps"),
    "cluster ps nodes": ("cluster", "ps", "--nodes"),
    "cluster explain": ("cluster", "explain", "waiting"),
    "cluster when": ("cluster", "when", "waiting"),
    "cluster history": ("cluster", "history"),
    "cluster outages": ("cluster", "outages"),
    "cluster submit, torch function, again": (
        "cluster", "submit", "--dry-run", "--features", FUNCTION, "--iterations", "1000", "--",
        "true",
    ),
}  # fmt: skip


def used_s(command: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    """Return the processor time of a process and its children.

    Raises
    ------
    RuntimeError
        The process failed; a refusal of a promotion, exit status 1, is an answer.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode and "did not pass the gate" not in done.stderr:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def presage(*arguments: str) -> list[str]:
    """Return the command line of ``presage``."""
    return [sys.executable, "-m", "presage", *arguments]


def write_job(folder: Path, env: Mapping[str, str]) -> Path:
    """Write the features of the function's model; trace it, so that they are cached."""
    done = subprocess.run(
        presage("features", FUNCTION, "--json"), env=env, capture_output=True, check=True
    )
    path = folder / "job.json"
    path.write_bytes(done.stdout)
    return path


def fill_registry(folder: Path, env: Mapping[str, str]) -> None:
    """Register two releases, and make both champion, one after the other."""
    second = folder / "second"
    shutil.copytree(RELEASE, second)
    path = second / "release.json"
    manifest = json.loads(path.read_text())
    manifest["data_digest"] = manifest["data_digest"][::-1]
    manifest["release_id"] = content_id(manifest)
    path.write_text(json.dumps(manifest))
    for release in (RELEASE, second):
        used_s(presage("models", "register", str(release)), env)
    for version in ("1", "2"):
        used_s(presage("models", "promote", version, *REASON), env)


@contextmanager
def cluster(folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Run a cluster of one node with a running and a waiting job; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    up = presage("cluster", "up", "--port", str(port), "--state", str(folder / "cluster"))
    with (folder / "cluster.log").open("wb") as log:
        process = subprocess.Popen(
            [*up, "--predictor", str(RELEASE)], env=env, stdout=log, stderr=log
        )
    try:
        _wait_for_node({**env, "PRESAGE_CLUSTER": address})
        for name in ("running", "waiting"):
            submit = ("cluster", "submit", "--name", name, "--", "sleep", "3600")
            used_s(presage(*submit), {**env, "PRESAGE_CLUSTER": address})
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables for commands with a home folder and a registry of their own."""
    return {
        **os.environ,
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PRESAGE_REGISTRY": f"sqlite:///{folder / 'registry.db'}",
    }


def _wait_for_node(env: Mapping[str, str]) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        listing = presage("cluster", "ps", "--nodes", "--json")
        done = subprocess.run(listing, env=env, capture_output=True, check=False)
        if done.returncode == 0 and b'"n' in done.stdout:
            return
        time.sleep(0.2)
    raise RuntimeError(f"no node joined the cluster within {START_S:g} s")
