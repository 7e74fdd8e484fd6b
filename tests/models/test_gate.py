from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
import yaml

from presage.features.errors import RegistryError, ReleaseError, TableError, TrainingError
from presage.models import gate, release
from presage.models.gate import GatePolicy, coverage_bounds, decide
from presage.models.registry import Registry
from presage.models.release import PREDICTORS
from presage.models.score import score
from presage.pipelines import promote as stage

FIGURES = {
    "jobs": 100,
    "rows": 300,
    "mape": 10.0,
    "median_ape": 8.0,
    "within_10pct": 60.0,
    "mae": 2.0,
    "rmsle": 0.1,
    "coverage_80%": 80.0,
    "interval_width_80%": 25.0,
    "coverage_90%": 90.0,
    "interval_width_90%": 33.0,
    "latency_us": 20.0,
}


def scores(**changes):
    """Equal figures of two predictors, but for these of memory."""
    return {"memory": FIGURES | changes, "step_time": dict(FIGURES)}


def verdict(decision, metric):
    return next(r.verdict for r in decision.rows if (r.predictor, r.metric) == ("memory", metric))


@pytest.fixture
def policy(policy):
    return GatePolicy(
        **asdict(policy) | {"latency_us": 500.0, "latency_ratio": 2.0, "latency_free_us": 50.0}
    )


def test_equal_is_no_improvement(policy):
    decision = decide(scores(), scores(), policy)

    assert not decision.promote
    assert decision.reason == "no improvement: no figure is better by more than 2 %"


@pytest.mark.parametrize(
    "change", [{"mape": 9.7}, {"within_10pct": 62.0}, {"interval_width_90%": 32.0}]
)
def test_one_figure_better_and_none_worse_promotes(policy, change):
    decision = decide(scores(), scores(**change), policy)

    assert decision.promote
    assert verdict(decision, *change) == "better"
    assert "1 of 14 figures are better" in decision.reason


def test_better_by_less_than_the_least_improvement_is_not_better(policy):
    assert not decide(scores(), scores(mape=9.81), policy).promote


@pytest.mark.parametrize("change", [{"mae": 2.21}, {"within_10pct": 50.9}, {"rmsle": 0.111}])
def test_one_figure_out_of_tolerance_refuses_whatever_is_better(policy, change):
    decision = decide(scores(), scores(median_ape=1.0, **change), policy)

    assert not decision.promote
    assert verdict(decision, *change) == "worse"
    assert f"memory {next(iter(change))} is" in decision.reason


def test_a_figure_may_be_worse_within_its_tolerance(policy):
    assert decide(scores(), scores(median_ape=1.0, mae=2.19, within_10pct=51.1), policy).promote


@pytest.mark.parametrize("coverage", [60.0, 99.0])
def test_intervals_that_do_not_cover_what_they_say_are_refused(policy, coverage):
    change = {"coverage_80%": coverage, "mape": 1.0}
    for champion in (scores(), None):
        decision = decide(champion, scores(**change), policy)

        assert not decision.promote
        assert verdict(decision, "coverage_80%") == "out of bounds"
        assert f"memory coverage_80% is {coverage:g}, at" in decision.reason


def test_few_jobs_are_not_refused_by_noise_and_many_are_held_to_the_points(policy):
    low = [coverage_bounds(0.9, jobs, policy)[0] for jobs in (10, 100, 1000, 100_000)]

    assert low == sorted(low)
    assert low[0] <= 60
    assert 84 < low[-1] < 85
    assert coverage_bounds(0.9, 10, policy)[1] == 100


def test_rows_of_one_job_do_not_count_as_many(policy):
    change = {"coverage_80%": 70.0, "mape": 1.0, "rows": 10_000}

    assert decide(scores(), scores(jobs=20, **change), policy).promote
    assert not decide(scores(), scores(jobs=2000, **change), policy).promote


def test_the_bounds_refuse_an_honest_release_as_rarely_as_the_policy_says(policy):
    covered = np.random.default_rng(0).binomial(50, 0.75, 20_000) * 2  # percent of 50 jobs
    refused = (covered < coverage_bounds(0.8, 50, policy)[0]).mean()

    assert 0.001 < refused <= policy.coverage_risk


@pytest.mark.parametrize(
    ("before", "now", "promoted"),
    [(20, 45, True), (40, 81, False), (40, 79, True), (400, 501, False), (None, 501, False)],
)
def test_latency_is_bounded_and_must_not_double(policy, before, now, promoted):
    champion = None if before is None else scores(latency_us=before)
    decision = decide(champion, scores(latency_us=now, mape=1.0), policy)

    assert decision.promote is promoted
    if not promoted:
        assert decision.reason == "memory is too slow"  # the microseconds differ from run to run


def test_a_first_release_is_held_to_the_bounds_alone(policy):
    decision = decide(None, scores(mape=500.0), policy)

    assert decision.promote
    assert verdict(decision, "mape") == "not compared"


def test_what_is_no_number_is_refused_unless_the_champion_has_none_either(policy):
    nan, inf = float("nan"), float("inf")

    assert not decide(scores(), scores(mape=nan, mae=1.0), policy).promote
    assert not decide(scores(), scores(**{"coverage_80%": nan}), policy).promote
    assert decide(scores(mape=inf), scores(mape=inf, mae=1.0), policy).promote


def test_a_policy_names_every_metric_and_no_other(policy):
    fields = asdict(policy)
    with pytest.raises(TypeError, match="patience"):
        GatePolicy(**fields | {"patience": 3})
    with pytest.raises(ValueError, match=r"promote\.tolerance names"):
        GatePolicy(**fields | {"tolerance": {"mape": 0.1}})
    with pytest.raises(ValueError, match=r"promote\.mape=-1"):
        GatePolicy(**fields | {"tolerance": fields["tolerance"] | {"mape": -1}})


# Scores of real ONNX files


def test_the_true_model_scores_as_its_noise_says(releases, tables):
    figures = score(releases["good"], *tables)

    assert list(figures) == list(PREDICTORS)
    for predictor, of_predictor in figures.items():
        assert of_predictor["mape"] == pytest.approx(8, abs=2.5), predictor  # 10 % x sqrt(2 / pi)
        assert of_predictor["coverage_80%"] == pytest.approx(80, abs=12), predictor
        assert of_predictor["interval_width_90%"] == pytest.approx(33, abs=4), predictor
        assert 0 < of_predictor["latency_us"] < 10_000
    assert figures["memory"]["jobs"] == figures["memory"]["rows"]
    assert figures["interference"]["jobs"] < figures["interference"]["rows"]


def test_only_held_out_jobs_are_judged_by(releases, tables):
    from presage.models.splits import HELD_OUT_FOLD, job_folds

    solo, interference = (table.copy() for table in tables)
    for table, column in ((solo, "memory_peak_bytes"), (interference, "slowdown")):
        seen = job_folds(list(table["job_id"])) != HELD_OUT_FOLD
        table.loc[seen, column] = 1e9
    before, after = score(releases["good"], *tables), score(releases["good"], solo, interference)

    for predictor in ("memory", "interference"):
        assert after[predictor]["mape"] == before[predictor]["mape"]


def test_the_order_of_rows_and_members_does_not_matter(releases, tables):
    solo, interference = (table.sample(frac=1, random_state=1) for table in tables)
    before, after = score(releases["good"], *tables), score(releases["good"], solo, interference)

    assert after["interference"]["mape"] == pytest.approx(before["interference"]["mape"])


def test_without_held_out_jobs_there_is_no_judgement(releases, tables):
    solo, interference = tables
    with pytest.raises(TrainingError, match="held out to judge compute_utilization"):
        score(releases["good"], solo.iloc[:0], interference)
    with pytest.raises(TrainingError, match="held out to judge interference"):
        score(releases["good"], solo, interference.iloc[:0])
    with pytest.raises(TableError, match="was not measured alone on 'm'"):
        score(releases["good"], solo, interference.assign(campaign="other"))


def test_a_network_that_breaks_the_contract_cannot_be_scored(make_release, tables, tmp_path):
    crossing = make_release(tmp_path / "crossing", spread=-0.1)
    with pytest.raises(ReleaseError, match="quantiles that cross"):
        score(crossing, *tables)


# The stage


@pytest.fixture
def run(tmp_path, monkeypatch, policy, features_dir):
    """Run the stage on a release; returns the decision file's bytes."""
    calm = asdict(policy) | {"latency_us": 1e5, "latency_ratio": 1e3}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"promote": calm}))
    monkeypatch.chdir(tmp_path)

    def main(which):
        stage.main([str(which.folder), str(features_dir), "decision.json"])
        return (tmp_path / "decision.json").read_bytes()

    return main


@pytest.fixture
def registry(uri, monkeypatch):
    monkeypatch.setenv("PRESAGE_REGISTRY", uri)
    return Registry(uri)


def outcome(content):
    return json.loads(content)["outcome"]


def test_a_better_release_takes_over_and_a_worse_one_does_not(run, registry, releases, capsys):
    first = run(releases["poor"])
    assert outcome(first) == "promoted"
    assert registry.champion().release_id == releases["poor"].release_id

    better = run(releases["good"])
    assert outcome(better) == "promoted"
    assert registry.resolve("previous").release_id == releases["poor"].release_id
    assert registry.champion().decision == json.loads(better)
    assert "gate, on the held-out jobs" in capsys.readouterr().out

    overconfident = run(releases["blind"])
    assert outcome(overconfident) == "not promoted"
    assert "coverage_80%" in json.loads(overconfident)["reason"]
    assert registry.resolve("challenger").release_id == releases["blind"].release_id
    assert registry.champion().release_id == releases["good"].release_id


def test_a_second_run_changes_nothing(run, registry, releases, monkeypatch, capsys):
    run(releases["poor"])
    promoted = run(releases["good"])
    monkeypatch.setattr(stage, "judge", None)  # nothing is scored any more
    before = registry.versions()

    assert run(releases["good"]) == promoted
    assert "champion already: nothing to do" in capsys.readouterr().out
    assert registry.versions() == before


def test_a_second_run_of_a_refused_release_changes_nothing(run, registry, releases, monkeypatch):
    run(releases["good"])
    refused = run(releases["blind"])
    monkeypatch.setattr(stage, "judge", None)
    before = registry.versions()

    assert run(releases["blind"]) == refused
    assert registry.versions() == before


def test_the_decision_file_is_the_same_on_another_registry(run, registry, releases, tmp_path):
    first = run(releases["good"])
    (tmp_path / "registry" / "mlflow.db").unlink()

    assert run(releases["good"]) == first  # a new registry, the microseconds are others


def test_a_lost_decision_file_comes_back_from_the_registry(run, registry, releases, tmp_path):
    content = run(releases["good"])
    (tmp_path / "decision.json").unlink()

    assert run(releases["good"]) == content


def test_what_a_person_rolled_back_is_not_promoted_again(run, registry, releases):
    run(releases["poor"])
    run(releases["good"])
    registry.rollback()
    content = run(releases["good"])

    assert outcome(content) == "not promoted"
    assert f"presage models promote {releases['good'].release_id}" in content.decode()
    assert registry.champion().release_id == releases["poor"].release_id
    assert run(releases["good"]) == content


def test_a_champion_of_another_schema_is_no_measure(
    run, registry, releases, make_release, tmp_path, monkeypatch
):
    with monkeypatch.context() as other:
        other.setattr(release, "schema_hash", lambda feature_set: "another")
        foreign = make_release(tmp_path / "foreign")
    registry.promote(registry.register(foreign, {}))
    content = json.loads(run(releases["poor"]))

    assert content["outcome"] == "promoted"
    assert f"champion {foreign.release_id} cannot be scored" in content["reason"]
    assert "another" in content["reason"]
    assert str(tmp_path) not in content["reason"]


def test_a_champion_that_came_in_meanwhile_stays(run, registry, releases, monkeypatch):
    run(releases["poor"])
    judge = stage.judge

    def slowly(*arguments):
        registry.promote(registry.register(releases["blind"], {}))
        return judge(*arguments)

    monkeypatch.setattr(stage, "judge", slowly)
    with pytest.raises(RegistryError, match="the champion changed"):
        run(releases["good"])
    assert registry.champion().release_id == releases["blind"].release_id


def test_nothing_heavy_is_imported_when_there_is_nothing_to_do(run, registry, releases):
    run(releases["good"])
    code = (
        "import sys; from presage.pipelines import promote\n"
        f"promote.main([{str(releases['good'].folder)!r}, 'features', 'decision.json'])\n"
        "assert not {'mlflow', 'pandas', 'onnxruntime', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_rows_of_the_file_name_limits_but_no_microseconds(run, registry, releases):
    rows = json.loads(run(releases["good"]))["rows"]
    latency = [row for row in rows if row["metric"] == "latency_us"]

    assert len(latency) == 4
    assert all(row["challenger"] is None and row["verdict"] == gate.WITHIN for row in latency)
    assert all(row["at_least"] for row in rows if row["metric"].startswith("coverage"))
