"""Every policy finishes every job while single devices fail and are repaired (L13)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.features.hazard.hazard_model import HazardModel
from presage.features.hazard.outage import Outage
from presage.schedulers.core.job_status import Phase
from presage.schedulers.faults.fault import outages_to_faults
from presage.schedulers.forecasters.outage_hazards import OutageHazards
from presage.schedulers.policies.policy_registry import POLICIES
from presage.testing.random_cases import CLUSTERS, traces
from tests.schedulers.clusters import simulated
from tests.support.slow_tests import examples

HAZARDS = OutageHazards(HazardModel(0.01, 0.3, (1.0,)))


@st.composite
def outages_of(draw, devices):
    """Draw outages that end, of nodes and of single devices; they may overlap."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        from_s = draw(st.sampled_from((0.0, 1.0, 3.0, 7.0, 40.0, 4000.0)))
        until_s = from_s + draw(st.sampled_from((0.0, 2.0, 50.0)))
        device = draw(st.integers(0, devices.devices - 1))
        node = devices.node_of[device]
        found.append(Outage(node, from_s, until_s, draw(st.sampled_from((None, device, device)))))
    return found


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=examples(25))
@given(made=traces(), devices=CLUSTERS, data=st.data())
def test_every_job_ends_whatever_devices_fail(name, made, devices, data):
    jobs, ground_truth = made
    outages = data.draw(outages_of(devices))
    done = simulated(
        devices, POLICIES[name](), jobs, ground_truth,
        faults=outages_to_faults(outages), hazards=HAZARDS,
    )  # fmt: skip
    plain = simulated(devices, POLICIES[name](), jobs, ground_truth)

    ended = {one.job.job_id: one.phase for one in done.results}
    rejected = {one.job.job_id for one in plain.results if one.phase is Phase.REJECTED}
    assert ended.keys() == {one.job.job_id for one in plain.results}
    assert {job_id for job_id, phase in ended.items() if phase is Phase.REJECTED} == rejected
    assert all(one.end_s < 1e6 for one in done.results)
