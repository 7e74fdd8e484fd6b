"""Features of a job with another batch size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from presage.features.graph.op_stats import OpStats
from presage.features.job.batch_scaling import with_batch_size
from tests.serving.conftest import make_job


def test_the_same_batch_changes_nothing():
    job = make_job(batch_size=32)

    assert with_batch_size(job, 32) is job


def test_samples_scale_and_weights_do_not():
    job = make_job(batch_size=32)
    optimizer = OpStats("Other", "optimizer", 0, 1, 10, 10, 10, 10.0, 40.0)
    found = with_batch_size(replace(job, op_stats=(*job.op_stats, optimizer)), 64)
    before, after = job.op_stats[0], found.op_stats[0]

    assert found.job.batch_size == 64
    assert after.flops == 2 * before.flops
    assert after.output_elements == 2 * before.output_elements
    weight_bytes = 4 * before.parameters
    assert after.bytes_moved - weight_bytes == pytest.approx(
        2 * (before.bytes_moved - weight_bytes)
    )
    assert found.op_stats[2] == optimizer
    assert found.memory.parameter_bytes == job.memory.parameter_bytes
    assert found.memory.activation_bytes == 2 * job.memory.activation_bytes
