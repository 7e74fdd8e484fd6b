import gc
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.features.device.device_table import DEVICE_VALUES, RATES, device_table
from presage.features.graph.op_class import OP_CLASSES
from presage.features.job.job_description import PRECISIONS
from presage.features.job.job_table import JOB_TABLES, OP_VALUES, job_table
from tests.features.examples import device, features, node
from tests.features.random_values import JOBS

SHAPELESS = ("GroupedConv2D", "DepthwiseConv2D")


@given(st.lists(JOBS, max_size=4))
def test_a_table_holds_the_values_of_its_jobs(jobs):
    table = job_table(jobs)

    assert len(table) == len(jobs)
    assert table.job_ids == tuple(one.job.job_id for one in jobs)
    assert [PRECISIONS[code] for code in table.precisions] == [one.job.precision for one in jobs]
    for name in ("batch_size", "iterations", "loads_data"):
        assert table.scalar(name).tolist() == [float(getattr(one.job, name)) for one in jobs]
    assert table.scalar("peak_live_bytes").tolist() == [float(one.peak_live_bytes) for one in jobs]


@given(st.lists(JOBS, max_size=4))
def test_operators_of_all_jobs_follow_one_another(jobs):
    table = job_table(jobs)
    ops = [op for one in jobs for op in one.op_stats]

    assert table.op_jobs().tolist() == [i for i, one in enumerate(jobs) for _ in one.op_stats]
    assert table.op_counts.tolist() == [len(one.op_stats) for one in jobs]
    assert table.op_starts.tolist() == [*np.cumsum([0, *table.op_counts])[:-1]]
    for value, name in zip(table.op_values, OP_VALUES, strict=True):
        assert value.tolist() == [float(getattr(op, name)) for op in ops]
    for code, op in zip(table.op_classes, ops, strict=True):
        kind, phase, shape = OP_CLASSES[code]
        assert (kind, phase) == (op.kind, op.phase)
        assert shape == op.shape or (kind in SHAPELESS and shape and not op.shape)


@pytest.mark.parametrize("name", ["precisions", "scalars", "op_counts", "op_classes", "op_values"])
def test_arrays_of_a_table_are_read_only(name):
    with pytest.raises(ValueError, match="read-only"):
        getattr(job_table([features()]), name)[...] = 0


def test_the_table_of_a_job_is_cached_and_freed_with_the_job():
    job = features()
    first = JOB_TABLES.get(job)
    known = len(JOB_TABLES)

    assert JOB_TABLES.get(job) is first
    assert JOB_TABLES.get(replace(job)) is not first  # an equal job is another object

    del job
    gc.collect()
    assert len(JOB_TABLES) == known - 1


def test_a_pickled_job_does_not_contain_its_table():
    job = features(node(), node("Relu"))
    JOB_TABLES.get(job)

    again = pickle.loads(pickle.dumps(job))
    assert again == job
    assert JOB_TABLES.get(again) is not JOB_TABLES.get(job)


def test_a_precision_without_a_figure_of_the_device_runs_at_fp32s():
    table = device_table([device(peak_flops_per_s={"fp32": 1e12, "bf16": 4e12})])

    peaks = dict(zip(PRECISIONS, table.rates[0, :, RATES.index("peak_flops_per_s")], strict=True))
    assert peaks == {"fp32": 1e12, "tf32": 1e12, "fp16": 1e12, "bf16": 4e12, "fp64": 1e12}
    assert table.values[0, DEVICE_VALUES.index("memory_gb")] == 32
    assert not table.values.flags.writeable
    assert not table.rates.flags.writeable
