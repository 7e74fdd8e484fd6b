"""The configuration file of a job."""

from __future__ import annotations

import pytest

from presage.errors import ElasticError
from presage.training.job_folder import JobFolder
from presage.training.leader.job_config import JobConfig, read_config, write_config


def test_s2_the_number_of_workers_is_read_from_the_configuration_file(tmp_path):
    config = JobConfig(workers=3, min_workers=2, max_workers=6, silence_s=5.0, is_successor=True)
    write_config(tmp_path / "job.json", config)

    assert read_config(tmp_path / "job.json") == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2, "min_workers": 3, "max_workers": 2}, "min_workers=3 is more than max"),
        ({"workers": 5, "max_workers": 4}, "5 workers is outside the job's bounds, 1 to 4"),
        ({"workers": 1, "min_workers": 0}, "at least 1 worker"),
        ({"max_workers": 65}, "at most 64"),
        ({"silence_s": 0.0}, "must be more than 0"),
    ],
)
def test_impossible_sizes_are_rejected(settings, message):
    with pytest.raises(ElasticError, match=message):
        JobConfig(**settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"worker": 1}', "unknown key 'worker'; known are workers"),
        ('{"workers": "2"}', "workers must be of type int"),
        ('{"is_successor": 1}', "is_successor must be of type bool"),
        ("[]", "not a JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_an_invalid_file_is_rejected_by_its_name(tmp_path, text, message):
    (tmp_path / "job.json").write_text(text)

    with pytest.raises(ElasticError, match=f"job.json: {message}"):
        read_config(tmp_path / "job.json")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 64])
def test_job_names_cannot_leave_the_state_folder(tmp_path, name):
    with pytest.raises(ElasticError, match="job name"):
        JobFolder(tmp_path, name)
