"""A worker of an elastic job for tests: a small model, and faults at chosen places.

Runs in processes forked from a server that has imported torch, so that a worker starts at once.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it, which takes seconds

from presage.training import elastic, gpu_expansion
from presage.training.generation import Member
from presage.training.job_folder import (
    JOB_VARIABLE,
    LEFT,
    PROCESS_GROUP,
    STATE_VARIABLE,
    WORKER_VARIABLE,
)
from presage.training.synchronous_accumulation import Ring
from presage.training.worker import checkpoint, peer_connections
from presage.training.worker.run import Run
from presage.training.worker.training_state import TrainingState
from tests.support.waiting import wait_until

SAMPLES, FEATURES = 96, 6


def data(samples: int = SAMPLES):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(samples, FEATURES, generator=generator)
    return x, (x.sum(1, keepdim=True) > 0).float()


def make_model(width: int = 8, dropout: float = 0.0):
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, width), torch.nn.BatchNorm1d(width, momentum=0.01),
        torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(width, 1),
    )  # fmt: skip


def run_worker(state: str, job: str, name: str, options: dict[str, Any]) -> None:
    """Train, and write what was done to ``STATE/NAME.jsonl`` and the result to ``NAME.json``."""
    os.environ.update({STATE_VARIABLE: state, JOB_VARIABLE: job, WORKER_VARIABLE: name})
    os.environ.update(options.get("environment", {}))
    if timeout_s := options.get("peer_timeout_s"):
        peer_connections.TIMEOUT_S = timeout_s
        peer_connections.KEEP_ALIVE = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 2}
    log = Path(state, f"{name}.jsonl").open("a", buffering=1)  # noqa: SIM115
    _arm(options.get("fault", {}))
    try:
        result = train(options, lambda row: log.write(json.dumps(row) + "\n"))
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    Path(state, f"{name}.part").write_text(json.dumps(result))
    Path(state, f"{name}.part").rename(Path(state, f"{name}.json"))
    sys.exit(LEFT if result.get("has_left") else "error" in result)


def train(options: dict[str, Any], log) -> dict[str, Any]:
    """Train a small model; return its state at the end, or when this worker left."""
    torch.set_num_threads(1)
    samples = options.get("samples", SAMPLES)
    device = options.get("device", "cpu")
    x, y = (one.to(device) for one in data(max(samples, 1)))
    model = make_model(options.get("width", 8), options.get("dropout", 0.0)).to(device)
    if options.get("no_norm", True):
        model[1] = torch.nn.Identity()
    wrapped = wrap(model) if options.get("is_wrapped") else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    run = elastic.begin(
        wrapped, optimizer, samples=samples, batch=options.get("batch", 12), scheduler=scheduler,
        seed=7, deterministic=options.get("deterministic", False),
        virtual_shards=options.get("virtual_shards", 6),
        data_set_digest=options.get("digest", ""),
        on_resize=ON_RESIZE.get(options.get("resize", "")),
        checkpoint=Path(options["checkpoint"]) if "checkpoint" in options else None,
        checkpoint_interval_s=options.get("checkpoint_interval_s", 60.0),
    )  # fmt: skip
    try:
        has_left = False
        loop(run, wrapped, optimizer, x, y, options, log)
    except SystemExit as end:
        assert end.code == LEFT
        has_left = True
    flat = torch.cat([one.detach().flatten().double() for one in model.state_dict().values()])
    return {
        "step": run.cursor.step, "epoch": run.cursor.epoch, "parameters": flat.tolist(),
        "moments": [float(s["step"]) for s in optimizer.state_dict()["state"].values()],
        "lr": optimizer.param_groups[0]["lr"], "scheduler": scheduler.last_epoch,
        "has_left": has_left,
    }  # fmt: skip


def wrap(model):
    """Wrap a model in DistributedDataParallel, as a script for torchrun does."""
    os.environ.update(PROCESS_GROUP)
    torch.distributed.init_process_group("gloo")
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def loop(run, model, optimizer, x, y, options, log) -> None:
    for step in run.steps(epochs=options.get("epochs", 3)):
        before = run.cursor.step
        generation, size = run.generation, run.size
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(x[step.indices]), y[step.indices]
        )
        loss.backward()
        if step.number == options.get("nan_step"):
            model[0].weight.grad[0, 0] = float("nan")
        time.sleep(options.get("step_s", 0.0))
        if gate := options.get("gates", {}).get(str(step.number)):
            _wait_for(options["state"], gate)
        if options.get("skip_apply") == step.number:
            continue
        run.apply(loss)
        if options.get("twice") == step.number:
            run.apply(loss)
        if run.cursor.step > before or options.get("deterministic"):
            log({
                "step": step.number, "epoch": step.epoch, "indices": step.indices.tolist(),
                "generation": generation, "size": size, "entry": run.entry, "loss": run.loss,
                "lr": optimizer.param_groups[0]["lr"], "committed": run.cursor.step > before,
            })  # fmt: skip
        if step.number == options.get("stop_at"):
            run.stop()


def _wait_for(state: str, gate: str) -> None:
    """Wait until a gate is opened; at most until the parent process gives up."""
    Path(state, f"{gate}.reached").touch()
    wait_until(Path(state, f"{gate}.open").exists, 600.0, pause_s=0.002)


ON_RESIZE = {
    "scale": lambda size: elastic.SizeSettings(batch=12 * size, learning_rate_factor=size / 2),
    "few": lambda size: elastic.SizeSettings(batch=2 if size > 2 else 12),
}


def _arm(fault: dict[str, Any]) -> None:
    """Let this process die, stop or wait at a place: at ``step`` of the sum, or in a transfer."""
    place, end = fault.get("place"), fault.get("signal", signal.SIGKILL)
    if place == "all_reduce":
        exchange = Ring._exchange

        def dying(self, sent, target, at, flags):
            if at[0] >= fault["step"] and at[1] == fault.get("iteration", 0):
                os.kill(os.getpid(), end)
            return exchange(self, sent, target, at, flags)

        Ring._exchange = dying  # type: ignore[method-assign]
    elif place in ("capture", "restore"):
        original = getattr(TrainingState, place)

        def job_has_begun(state, *content):
            return bool(content) or state.cursor.step > 0

        def dying_state(self, *args):
            if job_has_begun(self, *args):
                os.kill(os.getpid(), end)
            return original(self, *args)

        setattr(TrainingState, place, dying_state)
    elif place == "form":
        enter = peer_connections.connect_to_member
        calls = []

        def dying_connect(member, token, kind, generation, sender):
            calls.append(generation)
            if generation > 1 and kind == "ring":
                os.kill(os.getpid(), end)
            return enter(member, token, kind, generation, sender)

        gpu_expansion.connect_to_member = dying_connect  # type: ignore[attr-defined]
    elif place == "partition":
        _part(fault["peers"], fault.get("generation", 1), fault["kind"])
    elif place == "checkpoint":
        checkpoint.replace_bytes = _full_disk  # type: ignore[attr-defined]
    elif place == "begin":
        step = Run._adopt

        def never(self, generation):
            os.kill(os.getpid(), end)
            return step(self, generation)

        Run._adopt = never  # type: ignore[method-assign]


def _full_disk(path: Path, *_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _part(peers: list[str], generation: int, kind: str) -> None:
    """Cut this process off from workers, from a generation on.

    ``refused``: connections to them fail. ``silent``: they reach a listener that never answers.
    """
    original = peer_connections.connect_to_member
    peer_connections.TAKE_S = 0.5
    deaf = socket.create_server(("127.0.0.1", 0), backlog=128)

    def connect(member, token, name, number, sender):
        if number >= generation and member.worker_id.partition(".")[0] in peers:
            host, port = deaf.getsockname()
            member = Member(member.worker_id, host, 1 if kind == "refused" else port)
        return original(member, token, name, number, sender)

    gpu_expansion.connect_to_member = connect  # type: ignore[attr-defined]
