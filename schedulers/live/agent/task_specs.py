"""Specs and desired states of tasks, made from the orders of the controller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.protobuf.json_format import MessageToDict

from presage.schedulers.core.allocation import FULL_DEVICE_MILLI, Allocation
from presage.schedulers.live.agent.agent_options import AgentOptions
from presage.schedulers.live.agent.elastic_worker import worker_variables
from presage.schedulers.live.agent.isolation.account import find_account
from presage.schedulers.live.agent.isolation.inherited_environment import inherited_environment
from presage.schedulers.live.agent.node_task import NodeTask
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.agent.tasks.file_names import safe_name
from presage.schedulers.live.agent.tasks.task import DesiredState, End, TaskSpec
from presage.schedulers.policies.sharing.sharing_settings import URGENT_WEIGHT
from presage.schedulers.v1 import cluster_pb2 as pb


def make_spec(task: NodeTask, options: AgentOptions) -> TaskSpec:
    """Return how a task of a job is run: account, processors, GPUs, limits and environment."""
    submitted, limits = task.submitted, options.limits
    account = find_account(task.order.run_as, options.node, allow_root=options.allow_root_jobs)
    slots = [options.slots[allocation.device] for allocation in task.allocations]
    cpus = [cpu for slot in slots for cpu in slot.cpus or ()]
    cuda = [slot.cuda for slot in slots if slot.cuda is not None]
    # A job gets at most its share of a GPU: co-located tasks have the rest. That of a worker of an
    # elastic job changes, so that it is in a file.
    is_limited = bool(cuda) and not task.order.worker.job_id
    checkpoint = options.checkpoints.resolve() / checkpoint_name(task.order)
    home = options.state if account is None else Path(account.home)
    # A CPU job has at most the memory of its devices; a GPU job is not limited in host memory.
    memory_bytes = 0 if cuda else sum(slot.memory_bytes for slot in slots)
    return TaskSpec(
        task.name[0],
        task.name[1],
        submitted.command,
        str(Path(submitted.folder or home).absolute()),
        str(checkpoint),
        {
            **inherited_environment(account, options.pass_env),
            **submitted.environment,
            **worker_variables(task.order.worker, options.state, task.name),
        },
        tuple(cpus) or None,
        cuda=tuple(cuda) or None,
        memory_bytes=memory_share_bytes(task.allocations, options.slots) if is_limited else 0,
        grace_s=submitted.grace_s,
        hard_limit=options.hard_shares,
        weight=URGENT_WEIGHT if submitted.job.latency_sensitive else 1,
        can_grow=submitted.job.latency_sensitive or bool(task.order.worker.job_id),
        account=account,
        max_processes=limits.processes,
        max_open_files=limits.open_files,
        max_host_memory_bytes=limits.memory_bytes or memory_bytes,
        agent_data={
            "command": MessageToDict(task.order, preserving_proto_field_name=True),
            "allocations": [list(allocation) for allocation in task.allocations],
        },
    )


def memory_share_bytes(allocations: Sequence[Allocation], slots: Sequence[Slot]) -> int:
    """Return the smallest share of memory that is less than a whole device; 0 if there is none."""
    parts = [
        allocation.memory_bytes
        for allocation in allocations
        if allocation.memory_bytes < slots[allocation.device].memory_bytes
    ]
    return min(parts, default=0)


def checkpoint_name(order: pb.TaskCommand) -> str:
    """Return the name of a job's checkpoint folder; other jobs of the same name have others."""
    name = safe_name(order.worker.job_id or order.job.job_id)  # workers of a job share one
    return f"{name}.{safe_name(order.submission_id)}" if order.submission_id else name


def desired_state(task: NodeTask) -> DesiredState:
    """Return the desired state of a task, for its shim."""
    milli = task.allocations[0].compute_milli if task.allocations else FULL_DEVICE_MILLI
    end = End(task.checkpoint, task.end) if task.end else None
    return DesiredState(milli, task.paused, end)
