"""Failures that the scheduler learns of later: what is lost, what is stuck, and until when."""

from __future__ import annotations

import math

import pytest

from presage.errors import ConfigError
from presage.features.hazard.outage import Outage
from presage.schedulers.core.job import Checkpointing
from presage.schedulers.faults.detection import Detection
from presage.schedulers.faults.fault import outages_to_faults
from presage.schedulers.policies.fifo import Fifo
from tests.schedulers.clusters import cluster, job, simulated

DETECTION = Detection(suspect_s=4.0, lost_s=15.0)


def run(devices, jobs, outages, detection=DETECTION, run_s=100.0):
    """Return the finished simulation, and the end of each job."""
    truth = {one.job_id: run_s for one in jobs}
    faults = outages_to_faults(outages)
    done = simulated(devices, Fifo(), jobs, truth, faults=faults, detection=detection)
    return done, {one.job.job_id: one.end_s for one in done.results}


def test_a_job_stops_at_the_failure_and_starts_elsewhere_once_that_is_known():
    done, ends_s = run(cluster(1, 1), [job("a")], [Outage(0, 60.0, 500.0)])

    assert ends_s == {"a": 60 + 15 + 100}
    assert done.lost_device_s == 60
    known, _ = run(cluster(1, 1), [job("a")], [Outage(0, 60.0, 500.0)], None)
    assert known.results[0].end_s == 160


def test_the_work_since_the_last_checkpoint_before_the_failure_is_lost():
    checkpointed = job("a", checkpointing=Checkpointing(interval_s=50.0, restart_s=5.0))
    done, ends_s = run(cluster(1, 1), [checkpointed], [Outage(0, 60.0, 500.0)])

    assert ends_s == {"a": 60 + 15 + 5 + 50}
    assert done.lost_device_s == 10 + 5


def test_a_job_that_starts_on_a_node_before_it_is_suspected_is_stuck():
    done, ends_s = run(cluster(1, 1), [job("a", 62.0)], [Outage(0, 60.0, 500.0)])

    assert ends_s == {"a": 60 + 15 + 100}
    assert done.lost_device_s == 0
    _, ends_s = run(cluster(1, 1), [job("a", 65.0)], [Outage(0, 60.0, 500.0)])
    assert ends_s == {"a": 165}  # on the other node


def test_a_node_that_is_back_before_its_loss_is_known_gives_its_jobs_back_then():
    _, ends_s = run(cluster(1), [job("a")], [Outage(0, 60.0, 67.0)])

    assert ends_s == {"a": 67 + 100}


def test_a_gang_stops_as_a_whole_and_a_device_stops_alone():
    gang, other = job("gang", gpus=2), job("other")
    done, ends_s = run(cluster(2, 1), [gang, other], [Outage(0, 60.0, 70.0, 1)], Detection(0, 20))

    assert ends_s == {"other": 100, "gang": 170}
    assert done.lost_device_s == 2 * 60


def test_immediate_detection_is_the_default():
    jobs = [job(f"j{i}", 10.0 * i) for i in range(6)]
    outages = [Outage(0, 35.0, 90.0), Outage(1, 120.0, 130.0), Outage(0, 200.0, 210.0)]
    _, ends_s = run(cluster(1, 1), jobs, outages, Detection(0.0, 0.0))

    assert ends_s == run(cluster(1, 1), jobs, outages, None)[1]


@pytest.mark.parametrize(("suspect_s", "lost_s"), [(-1, 5), (6, 5), (0, math.inf), (math.nan, 1)])
def test_invalid_times_are_rejected(suspect_s, lost_s):
    with pytest.raises(ConfigError, match="suspect_s at most lost_s"):
        Detection(suspect_s, lost_s)
