"""Results of AllReduces on the switch and by ring (requirements I1 to I4, bit-identical ranks)."""

from __future__ import annotations

import pytest

SIZE = 50_000  # values
TOLERANCE = 1e-5  # of sums of a few normal values, which differ by the order of their addition


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("protocol", ["in_band", "two_phase"])
def test_i4_the_switch_sums_what_the_view_allows_and_the_ring_all_else(
    start_switch, start_arbiter, start_job, ranks, protocol
):
    switch, arbiter = start_switch(), start_arbiter(ranks, protocol=protocol)
    arbiter.use_switch(switch)
    arbiter.allow(lambda number: number % 2 == 0)
    job = start_job(
        "sums",
        ranks,
        arbiter,
        {"size": SIZE, "steps": 30, "compare": True, "use_switch": True},
        {"PRESAGE_INC_AGREEMENT": protocol},
    )

    results = job.results()

    assert len({result["digest"] for result in results}) == 1
    assert all(result["worst"] < TOLERANCE for result in results)
    assert [result["summed"] for result in results] == [15] * ranks
    assert [result["numbered"] for result in results] == [30] * ranks


def test_averages_run_on_the_switch_too(start_switch, start_arbiter, start_job):
    switch, arbiter = start_switch(), start_arbiter()
    arbiter.use_switch(switch)
    arbiter.allow()
    options = {"size": SIZE, "steps": 5, "compare": True, "use_switch": True, "average": True}

    results = start_job("sums", 2, arbiter, options).results()

    assert len({result["digest"] for result in results}) == 1
    assert all(result["worst"] < TOLERANCE and result["summed"] == 5 for result in results)


def test_without_an_arbiter_all_run_by_ring_with_the_bits_of_gloo(start_job):
    results = start_job("sums", 2, None, {"size": SIZE, "steps": 5, "compare": True}).results()

    assert all(result["worst"] == 0 and result["summed"] == 0 for result in results)


def test_an_arbiter_that_only_some_ranks_know_is_not_used(start_switch, start_arbiter, start_job):
    switch, arbiter = start_switch(), start_arbiter()
    arbiter.use_switch(switch)
    arbiter.allow()
    job = start_job(
        "sums", 2, arbiter, {"size": SIZE, "steps": 5}, rank1={"PRESAGE_INC_ARBITER": ""}
    )

    assert all(result["summed"] == 0 for result in job.results())


@pytest.mark.parametrize("is_compiled", [False, True])
def test_losses_of_ddp_are_those_of_the_ring(start_switch, start_arbiter, start_job, is_compiled):
    switch, arbiter = start_switch(), start_arbiter()
    arbiter.use_switch(switch)
    arbiter.allow(lambda number: number % 3 != 0)
    options = {"size": SIZE, "steps": 15, "compile": is_compiled}

    by_ring = start_job("ddp", 2, None, options).results()
    mixed = start_job("ddp", 2, arbiter, {**options, "use_switch": True}).results()

    assert all(result["summed"] > 5 for result in mixed)
    assert mixed[0]["losses"] == mixed[1]["losses"]
    assert mixed[0]["digest"] == mixed[1]["digest"]
    assert mixed[0]["losses"] == pytest.approx(by_ring[0]["losses"], rel=1e-4)
    assert mixed[0]["losses"][-1] < mixed[0]["losses"][0]
