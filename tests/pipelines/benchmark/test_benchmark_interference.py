"""`presage benchmark interference` on the committed campaigns and on public files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from presage.errors import TableError, TrainingError
from presage.features.tables.campaign import read_campaign
from presage.models.training import baselines
from presage.models.training.fit import FitConfig
from presage.pipelines.benchmark import benchmark_run as benchmark
from presage.pipelines.benchmark.additive import Additive
from presage.pipelines.benchmark.benchmark_splits import novelty
from presage.pipelines.benchmark.colocated import Colocated, colocated
from presage.pipelines.benchmark.files import read_tables
from presage.pipelines.benchmark.interference import InterferenceTask, _folds
from presage.pipelines.benchmark.tasks import TASKS
from presage.pipelines.importers.public_models.graph_cache import NoGraphs
from tests.pipelines.benchmark.blind import assert_blind
from tests.pipelines.public_files import OneGraph, real

PROFILES = Path(__file__).parents[3] / "data/profiles"
TRAIN, TEST = PROFILES / "cpu-2", PROFILES / "cpu-2-zoo"
TINY = FitConfig(
    hidden=8, steps=20, learning_rate=0.02, weight_decay=0.1, ensemble=1, seed=0, batch=32
)
QUICK = InterferenceTask(TINY, replace(TINY, jitter=0.5))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Train networks of a few steps: their quality is not tested here."""
    monkeypatch.setitem(TASKS, "interference", QUICK)


@pytest.fixture
def no_trees(monkeypatch):
    """Skip the baseline that takes longer than everything else."""
    monkeypatch.delitem(baselines.BASELINES, "boosted_trees")


@pytest.fixture(scope="module")
def rows():
    return colocated([read_campaign(TRAIN)])


def run(train=(TRAIN,), test=(), **options):
    return benchmark.run(
        "interference", train, test, graphs=NoGraphs(), progress=lambda done, total: None, **options
    )


def test_a_campaign_is_scored_by_another_with_five_baselines():
    result = run(test=[TEST])

    assert (result.split, result.unit) == ("test", "normalised speed")
    assert list(result.baselines) == [
        "constant", "linear", "boosted_trees", "mean_by_members", "additive",
    ]  # fmt: skip
    assert np.isfinite([*result.mlp.values()]).all()
    assert 0 < result.mlp["coverage"] <= result.mlp["coverage_90"] <= 100


@pytest.mark.usefixtures("no_trees")
@pytest.mark.parametrize("split", ["pair", "family", "group"])
def test_each_victim_is_scored_once(split, rows):
    result = run(split=split)

    assert result.rows == len(rows.measured)
    assert result.rows == sum(one["rows"] for one in result.slices["family"].values())


@pytest.mark.usefixtures("no_trees")
@pytest.mark.parametrize("split", ["pair", "family"])
def test_no_forecast_of_a_held_out_victim_depends_on_similar_colocations(split, rows):
    folds = _folds(rows, split, 0)
    asked = folds == folds[0]
    hidden = rows.touched_by(asked)
    before, after, other = (
        QUICK.cross_forecast(
            replace(rows, members=rows.members.assign(speed=rows.members["speed"] * factor)),
            split, seed=0, progress=lambda done, total: None,
        )
        for factor in (1.0, np.where(hidden, 0.7, 1.0), np.where(hidden, 1.0, 0.7))
    )  # fmt: skip
    assert_blind(asked[rows.is_victim], before, after, other)


def test_pairs_without_solo_measurements_are_predicted():
    campaign = read_campaign(TRAIN)
    lonely = replace(campaign, executions=campaign.executions.iloc[:0])
    found = colocated([lonely])

    assert len(found.measured) > 100
    assert np.isfinite(found.columns).all()


@pytest.mark.usefixtures("no_trees")
def test_the_same_seed_gives_the_same_figures():
    first, again, other = (run(seed=seed).mlp for seed in (3, 3, 4))

    assert first == again
    assert first != other


# Rows -----------------------------------------------------------------------------------------


def test_every_member_is_a_victim_and_equal_members_are_one_row(rows):
    campaign = read_campaign(TRAIN).colocations
    known = campaign[campaign["slowdown"].notna()]

    assert rows.members.loc[rows.is_victim, "count"].sum() == len(known)
    assert not rows.metadata["row"].duplicated().any()
    assert (rows.count.sum(axis=1) >= 2).all()
    assert rows.count.sum() == rows.members["count"].sum()


def test_the_co_located_jobs_of_a_member_are_all_others(rows):
    ones = np.ones((len(rows.members), 1))

    np.testing.assert_array_equal(
        rows.sum_of_others(ones)[:, 0] + 1, rows.count.sum(axis=1)[rows.places[0]]
    )


def test_no_colocation_with_a_held_out_family_is_trained_on(rows):
    family = rows.members["family"].iloc[0]
    hidden = rows.touched_by((rows.members["family"] == family).to_numpy())
    seen = rows.members[~hidden]

    assert family not in set(seen["family"])
    assert set(seen["colocation"]).isdisjoint(rows.members.loc[hidden, "colocation"])
    assert len(seen) > 0


def test_a_row_is_unseen_if_any_member_is():
    train = pd.DataFrame({"device": ["d", "e"], "family": ["x", "y"], "model": ["1", "2"]})
    train = train.loc[[0, 1] * 20]
    test = pd.DataFrame({"device": ["d"] * 4, "family": ["x", "z", "x", "z"], "model": ["1"] * 4})
    together = pd.Series([0, 0, 1, 1])

    assert novelty(train, test, together, known="pair") == "family"
    assert novelty(train, test, known="pair") == "pair"


def test_the_additive_rule_recovers_its_effects():
    rng = np.random.default_rng(0)
    slow, slows = {"a": -0.1, "b": -0.4, "c": -0.2}, {"a": -0.3, "b": -0.2, "c": -0.5}
    lines = []
    for place in range(300):
        first, second = rng.choice(list("abc"), 2, replace=False)
        for slot, (own, other) in enumerate(((first, second), (second, first))):
            speed = np.exp(slow[own] + slows[other])
            lines.append({"colocation": place, "slot": slot, "job": own, "speed": speed})
    members = pd.DataFrame(lines).assign(
        count=1, device="d", row="", pair="", model="", family="", group="", release="", source="",
        campaign="",
    )  # fmt: skip
    rows = Colocated(members, np.zeros((len(members), 1)))

    speeds = Additive(rows, np.arange(600) < 400).speeds(rows)

    np.testing.assert_allclose(speeds, rows.measured, rtol=1e-3)
    elsewhere = Colocated(members.assign(device="e", job="z"), rows.columns)
    np.testing.assert_allclose(
        np.log(Additive(rows, np.ones(600, dtype=bool)).speeds(elsewhere)),
        np.log(rows.measured).mean(),
    )


# What is refused ------------------------------------------------------------------------------


def test_the_error_names_a_victim_that_is_also_in_training():
    with pytest.raises(TableError, match=r"rows of --test are also in --train \(.+ of cpu-2"):
        run(test=[TRAIN])


def test_a_split_with_an_empty_side_is_an_error():
    with pytest.raises(TrainingError, match="leaves one side empty: there is only 'cpu-2'"):
        run(split="device")


def test_a_table_without_a_colocation_is_an_error():
    with pytest.raises(TrainingError, match="0 rows can be used, but calibration needs 20"):
        run(train=[real("miso") / "mig_isolated_step_time.csv"])


@pytest.mark.parametrize(
    ("kept", "speed", "message"),
    [
        (4, None, r"\d+ rows can be used, but calibration needs 20"),
        (99, 0.5, "the target is 0.5 in"),
    ],
)
def test_too_few_rows_or_equal_rows_are_errors(monkeypatch, kept, speed, message):
    class Changed(InterferenceTask):
        def rows(self, campaigns):
            rows = super().rows(campaigns)
            few = rows.members["colocation"] < kept
            members = rows.members[few] if speed is None else rows.members[few].assign(speed=speed)
            return Colocated(members, rows.columns[few], rows.features[few])

    monkeypatch.setitem(TASKS, "interference", Changed(TINY, TINY))

    with pytest.raises(TrainingError, match=message):
        run()


# Published files ------------------------------------------------------------------------------


def read(*paths, beside=()):
    return QUICK.rows(read_tables(paths, OneGraph(), solo_sources=beside))


def test_clipped_or_infeasible_rows_of_gavel_are_not_victims():
    folder = real("gavel")
    found = read(folder / "pairs.csv.gz", folder / "isolated.csv.gz")

    assert set(found.metadata["device"]) == {"k80", "p100", "v100-16gb"}
    assert len(found.measured) == 1801  # 1,869 measured, without 68 co-locations of equal jobs
    assert (found.measured < 1).all()
    both_ways = found.metadata.groupby("pair")["row"].count()
    assert both_ways.max() == 6  # two victims on three devices: never in two folds


def test_ppo_and_td3_of_lucid_are_co_located_jobs_but_not_victims():
    folder = real("lucid")
    found = read(folder / "pairs.csv", beside=[folder / "pairs.csv", folder / "solo.csv"])

    assert {"ppo", "td3"} <= set(found.members["family"])
    assert {"ppo", "td3"}.isdisjoint(found.metadata["family"])
    assert len(found.measured) > 1000


def test_the_solo_run_of_a_parvagpu_row_may_be_on_the_other_side(tmp_path):
    rows = pd.read_csv(real("parvagpu") / "parvagpu_tidy.csv.gz")
    few, many = tmp_path / "few.csv", tmp_path / "many.csv"
    rows[rows["Workload Number"] <= 2].to_csv(few, index=False)
    rows[rows["Workload Number"] >= 3].to_csv(many, index=False)

    trained, asked = read(few, beside=[many]), read(many, beside=[few])

    assert set(trained.members["count"]) == {2}
    assert set(asked.members["count"]) == {3, 4, 5}
    assert len(asked.measured) == len(asked.members)
    assert novelty(trained.members, asked.members, known="pair") == "pair"
