"""Outcomes of a measured campaign, as `presage outcomes report` sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from presage.cli.serving.campaign_outcomes import campaign_outcomes
from presage.features.tables.campaign import read_campaign
from presage.serving.codec.wire_outcomes import read_outcomes, write_report

FOLDER = Path(__file__).parents[3] / "data/profiles/cpu-2"


@pytest.fixture(scope="module")
def campaign():
    return read_campaign(FOLDER)


def test_every_run_is_a_valid_outcome_with_a_key_of_its_own(campaign):
    outcomes = campaign_outcomes(campaign, "r1", {})

    request = write_report(outcomes[:50] + outcomes[-50:])
    valid, errors = read_outcomes(request, lambda kind: None)
    assert (len(valid), errors) == (100, {})
    assert len({one.idempotency_key for one in outcomes}) == len(outcomes)
    assert {one.release_id for one in outcomes} == {"r1"}


def test_solo_runs_come_first_because_slowdowns_refer_to_them(campaign):
    outcomes = campaign_outcomes(campaign, "r1", {})
    is_colocated = [bool(one.colocated_jobs) for one in outcomes]

    assert is_colocated == sorted(is_colocated)
    assert 0 < sum(is_colocated) < len(outcomes)


def test_a_kind_that_the_server_knows_has_its_data_sheet(campaign, cpu):
    outcomes = campaign_outcomes(campaign, "r1", {"cpu-2": cpu})

    assert {one.device for one in outcomes} == {cpu}


def test_another_release_has_other_keys(campaign):
    one, other = (campaign_outcomes(campaign, name, {})[0] for name in ("r1", "r2"))

    assert one.idempotency_key != other.idempotency_key
