"""Tests of the files by which a worker of an elastic job finds its leader."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from presage.errors import ElasticError
from presage.schedulers.core.allocation import Allocation
from presage.schedulers.live.agent.elastic_worker import LeaderFiles, worker_variables
from presage.schedulers.live.agent.slot import Slot
from presage.schedulers.live.agent.task_specs import memory_share_bytes
from presage.schedulers.live.agent.tasks.task import DesiredState, TaskSpec
from presage.schedulers.live.agent.tasks.task_process import create
from presage.schedulers.v1 import cluster_pb2 as pb
from presage.training.job_folder import (
    JOB_VARIABLE,
    PROCESS_GROUP,
    STATE_VARIABLE,
    WORKER_VARIABLE,
    JobFolder,
)


@pytest.fixture
def worker():
    return pb.ElasticWorker(job_id="a job", name="m2", leader_job="job-7", port=4, token="secret")


def make_task(state):
    spec = TaskSpec("a job/m2", 3, ("train",), "/", str(state / "checkpoint"))
    return create(state, spec, DesiredState())


def job_folder(worker, state):
    variables = worker_variables(worker, state, ("a job/m2", 3))
    assert variables[WORKER_VARIABLE] == "m2"
    assert variables.items() >= PROCESS_GROUP.items()
    return JobFolder(Path(variables[STATE_VARIABLE]), variables[JOB_VARIABLE])


def test_a_worker_connects_to_its_leader_at_the_controllers_host(tmp_path, worker):
    task, files = make_task(tmp_path), LeaderFiles()
    files.write(task, worker, "head")

    address = job_folder(worker, tmp_path).leader()
    assert (address.host, address.port, address.token) == ("head", 4, "secret")
    worker.port = 5  # the leader was started again
    files.write(task, worker, "head")
    assert job_folder(worker, tmp_path).leader().port == 5


def test_before_the_leader_runs_a_worker_waits_for_its_address_in_a_folder(tmp_path, worker):
    worker.port = 0
    LeaderFiles().write(make_task(tmp_path), worker, "head")

    folder = job_folder(worker, tmp_path)
    assert folder.path.is_dir()
    with pytest.raises(ElasticError, match="no leader of job 'job-7'"):
        folder.leader()


def test_only_the_account_of_the_job_reads_the_token(tmp_path, worker):
    before = os.umask(0o077)  # of a hardened service
    try:
        LeaderFiles().write(make_task(tmp_path), worker, "head")
    finally:
        os.umask(before)

    folder = job_folder(worker, tmp_path).path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o711
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o400}


def test_other_tasks_get_no_variables(tmp_path):
    assert worker_variables(pb.ElasticWorker(), tmp_path, ("job", 1)) == {}


def test_s4_a_worker_reads_its_current_memory_share(tmp_path, worker):
    task, files = make_task(tmp_path), LeaderFiles()
    folder = job_folder(worker, tmp_path)
    assert folder.memory_bytes() is None
    for share_bytes in (700, 300, 300, 0):
        files.write_share(task, worker, share_bytes)
        files.write(task, worker, "head")
        assert folder.memory_bytes() == share_bytes
    assert folder.leader().port == 4


def test_the_smallest_memory_share_applies_and_none_on_exclusive_devices():
    slots = [Slot("v100", 16, cuda=0), Slot("v100", 16, cuda=1)]

    assert memory_share_bytes([Allocation(0, 1000, 16), Allocation(1, 1000, 16)], slots) == 0
    assert memory_share_bytes([Allocation(0, 500, 9), Allocation(1, 500, 7)], slots) == 7
