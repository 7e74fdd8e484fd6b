"""Anchors: fixed jobs of the zoo, each with itself and with two fixed partners."""

from __future__ import annotations

import pytest

from presage.features.device.device import Share, catalogue
from presage.pipelines.profiling.campaign.anchors import (
    anchor_colocations,
    anchor_jobs,
    anchor_precisions,
)
from presage.pipelines.profiling.campaign.campaign_settings import CampaignSettings
from presage.pipelines.profiling.zoo import FAMILIES

SHARE = Share(mode="time-slice")


@pytest.mark.parametrize("large", [False, True])
def test_anchors_are_jobs_of_the_zoo(large):
    jobs = anchor_jobs(("fp32", "bf16"), large=large)

    assert len(jobs) == 8
    for job in jobs:
        family = FAMILIES[job.family]
        assert job.variant in (family.large if large else family.variants)
        assert job.batch_size in (family.large_batch_sizes if large else family.batch_sizes)
        assert job.optimizer == family.optimizer


def test_each_anchor_runs_with_itself_and_with_both_partners():
    jobs = anchor_jobs(("fp32", "bf16"), large=True)
    names = [job.name for job in jobs]

    drawn = [members for members, _ in anchor_colocations(jobs, names, SHARE)]

    assert len(drawn) == len(set(drawn)) == 18
    assert drawn[:8] == [(name, name) for name in names]
    for first in (0, 4):  # of each precision
        for name in names[first : first + 4]:
            for partner in names[first : first + 2]:
                assert tuple(sorted((name, partner))) in drawn


def test_anchors_that_failed_or_that_are_done_are_left_out():
    jobs = anchor_jobs(("fp32",), large=False)
    names = [job.name for job in jobs]
    drawn = list(anchor_colocations(jobs, names, SHARE))

    assert list(anchor_colocations(jobs, names, SHARE, drawn[:5])) == drawn[5:]
    without_first = [members for members, _ in anchor_colocations(jobs, names[1:], SHARE)]
    assert without_first
    assert not any(names[0] in members for members in without_first)


def test_a_gpu_is_measured_in_half_precision_too():
    assert anchor_precisions(catalogue()["cpu-2"], large=False) == ("fp32",)
    assert anchor_precisions(catalogue()["a100-40gb"], large=True) == ("fp32", "bf16")
    assert anchor_precisions(catalogue()["v100-16gb"], large=True) == ("fp32", "fp16")


def test_anchors_are_a_setting_of_a_campaign():
    assert CampaignSettings("anchor", 300, anchor=True).anchor
