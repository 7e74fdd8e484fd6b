"""What a campaign's rows say of a job, a device and a share."""

from __future__ import annotations

import shutil
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from presage.features.columns.schema import columns, matrix
from presage.features.device.device import Share
from presage.features.tables.campaign import read_campaign
from presage.pipelines.stages.featurize import featurize_solo
from tests.pipelines.public_files import ROOT

CAMPAIGN = ROOT / "data/profiles/cpu-2-zoo"


@pytest.fixture(scope="module")
def campaign():
    return read_campaign(CAMPAIGN)


@pytest.mark.parametrize("table", ["executions", "colocations"])
def test_a_row_is_placed_with_its_job_device_share_and_version(campaign, table):
    rows = getattr(campaign, table).to_dict("records")
    assert rows

    for row in rows:
        placement = campaign.placement(row)
        told = campaign.jobs[row["job_id"]]
        assert placement.job == replace(told, job=replace(told.job, framework_version="2.13.0"))
        key = (row["device_kind"], row["machine"], row["campaign"])
        assert placement.device == campaign.devices[key]
        assert placement.share == Share(row["share"], row["sharing_mode"])


@pytest.mark.parametrize(
    ("framework", "versions", "version"),
    [
        ("torch", "torch=1.12 cuda=11.3", "1.12"),
        ("torch", "python=3.11.7 torch=2.13.0+cpu", "2.13.0"),
        ("tensorflow", "torch=1.12 tensorflow=1.15.2", "1.15.2"),
        ("tensorflow", "torch=1.12", ""),
        ("torch", "cuda=11.3", ""),
        ("torch", "pytorch=1.12", ""),
        ("torch", "torch", ""),
        ("torch", "torch=", ""),
        ("torch", "torch=nightly", ""),
        ("torch", "torch=2", ""),
        ("torch", "", ""),
        ("", "torch=1.12", ""),
    ],
)
def test_a_jobs_version_is_the_word_of_its_framework(campaign, framework, versions, version):
    row = campaign.executions.to_dict("records")[0] | {"versions": versions}
    told = campaign.jobs[row["job_id"]]
    job = replace(told, job=replace(told.job, framework=framework))
    of_framework = replace(campaign, jobs={row["job_id"]: job})

    assert of_framework.placement(row).job.job.framework_version == version


def test_features_are_those_of_the_placements(campaign):
    solo = featurize_solo(campaign)
    ran = campaign.executions[campaign.executions["failure"] == ""]
    placements = [campaign.placement(row) for row in ran.to_dict("records")]

    for feature_set in ("published", "full"):
        found = solo[[f"{feature_set}.{name}" for name in columns(feature_set)]]
        np.testing.assert_array_equal(found.to_numpy(), matrix(placements, feature_set))


def jobs_as(folder: Path, edit) -> Path:
    """The campaign copied, its table of jobs changed."""
    copied = Path(shutil.copytree(CAMPAIGN, folder / "campaign"))
    path = copied / "jobs.parquet"
    pq.write_table(edit(pq.read_table(path, partitioning=None)), path)
    return copied


def test_memory_components_equal_the_columns_of_the_table(campaign):
    for row in pq.read_table(CAMPAIGN / "jobs.parquet", partitioning=None).to_pylist():
        job = campaign.jobs[row["job_id"]]
        assert job.memory.gradient_bytes == row["gradient_bytes"]
        assert job.memory.batch_bytes == row["batch_bytes"]
        assert job.peak_live_bytes == row["peak_live_bytes"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t.drop_columns(["workspace_bytes"]),
        lambda t: t.drop_columns([n for n in t.column_names if n.endswith("_bytes")][1:]),
        lambda t: t.set_column(
            t.column_names.index("batch_bytes"), "batch_bytes", pa.nulls(len(t), pa.int64())
        ),
    ],
    ids=["one column", "all columns", "one value"],
)
def test_a_file_of_an_older_format_gives_only_the_peak(campaign, tmp_path, edit):
    older = read_campaign(jobs_as(tmp_path, edit))

    assert older.jobs.keys() == campaign.jobs.keys()
    for job_id, job in older.jobs.items():
        peak, weights = campaign.jobs[job_id].peak_live_bytes, 4 * job.parameters
        assert job.peak_live_bytes == peak
        assert astuple(job.memory) == (weights, 0, 0, 0, peak - weights, 0)


def test_operators_say_what_parameters_they_read(campaign):
    for job in campaign.jobs.values():
        forward = sum(row.parameters for row in job.op_stats if row.phase == "forward")
        assert forward >= job.parameters > 0
