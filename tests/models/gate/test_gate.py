from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from presage.errors import RegistryError, ReleaseError, TableError, TrainingError
from presage.models.gate import release_gate as gate
from presage.models.gate.holdout_forecasts import HoldoutForecasts, Interval, ScoredRelease
from presage.models.gate.holdout_score import score_release
from presage.models.gate.paired_bootstrap import paired_changes
from presage.models.gate.release_gate import (
    BETTER,
    REJECTING_VERDICTS,
    GatePolicy,
    coverage_bounds,
    decide,
    miss,
)
from presage.models.registry.registry import Registry
from presage.models.registry.stored_releases import StoredReleases
from presage.models.release import release, release_content
from presage.models.release.manifest import job_digest
from presage.pipelines.stages import promote as stage
from presage.pipelines.stages.gate_decision import print_table, rows_by_importance

Z = {0.8: 1.2816, 0.9: 1.6449}
SPREAD = 0.1  # of log(forecast / measured), as in conftest


def held_out(seed=0, *, jobs=60, factor=1.0, own=0.3, devices=1, on=None, width=1.0, latency_us=20):
    """Return three rows per job; a job is equally hard for all releases, except for ``own``.

    ``factor`` times the errors, everywhere or ``on`` one device.
    """
    world, rng = np.random.default_rng(0), np.random.default_rng(seed)
    job = np.repeat(np.arange(jobs), 3)
    device = np.array([f"d{i % devices}" for i in job], object)
    measured = np.exp(world.normal(0, 2, len(job)))
    shared, ours = (
        (r.normal(size=jobs)[job] + r.normal(size=len(job))) / np.sqrt(2) for r in (world, rng)
    )
    error = SPREAD * (np.sqrt(1 - own**2) * shared + own * ours)
    error[np.full(len(job), True) if on is None else device == on] *= factor
    median = measured * np.exp(error)
    return HoldoutForecasts(
        jobs=np.array([f"job-{i}" for i in job], object),
        families=np.array([f"f{i % 2}" for i in job], object),
        devices=device,
        measured=measured,
        median=median,
        intervals={
            c: Interval(*(median * np.exp(sign * z * width * SPREAD) for sign in (-1, 1)))
            for c, z in Z.items()
        },
        in_domain=np.ones(len(job), bool),
        latency_us=latency_us,
    )


def scored(memory=None, **changes):
    """Return a release of two predictors, with given forecasts of memory."""
    both = {"memory": memory or held_out(**changes), "step_time": held_out()}
    return ScoredRelease(both, size_bytes=1000, trained_on=frozenset())


def verdict(decision, metric, slice_name=""):
    key = ("memory", metric, slice_name)
    return next(r.verdict for r in decision.rows if (r.predictor, r.metric, r.slice_name) == key)


@pytest.fixture
def policy(policy):
    return GatePolicy(
        **asdict(policy) | {"latency_us": 500.0, "latency_ratio": 2.0, "latency_free_us": 50.0}
    )


def test_equal_is_no_improvement(policy):
    decision = decide(scored(), scored(), policy)

    assert not decision.promote
    assert decision.reason.startswith("no improvement: no figure is better by more than 2 % with")
    assert {row.verdict for row in decision.rows} == {"within"}


def test_a_release_that_predicts_fewer_quantities_is_rejected(policy):
    fewer = replace(scored(), predictors={"memory": held_out()})

    for champion in (scored(), replace(fewer, unscored=frozenset({"step_time"}))):
        decision = decide(champion, fewer, policy)
        assert not decision.promote
        assert decision.reason.startswith("the release does not predict step_time, which the ")
    assert decide(fewer, fewer, policy).reason.startswith("no improvement")


def test_equally_good_releases_are_rarely_called_better_or_worse(policy):
    policy = GatePolicy(**asdict(policy) | {"resamples": 200})
    decisions = [
        decide(scored(seed=2 * i, devices=3), scored(seed=2 * i + 1, devices=3), policy)
        for i in range(100)
    ]
    found = [{row.verdict for row in decision.rows} for decision in decisions]

    # 5 % each way are allowed; of 100 draws at 5 % more than 11 come once in 200.
    for wrong in ("better", "worse"):
        assert sum(wrong in verdicts for verdicts in found) <= 11


def test_a_fifth_less_error_on_sixty_jobs_promotes(policy):
    promoted = [
        decide(scored(seed=2 * i), scored(seed=2 * i + 1, factor=0.8), policy).promote
        for i in range(30)
    ]

    assert sum(promoted) >= 29
    reason = decide(scored(), scored(seed=1, factor=0.8), policy).reason
    assert "none is worse" in reason
    assert "memory mape" in reason


def test_a_deterioration_on_one_device_rejects_and_is_named(policy):
    champion = scored(devices=6, jobs=150)
    challenger = scored(seed=1, devices=6, jobs=150, factor=2.0, on="d3")
    decision = decide(champion, challenger, policy)

    assert not decision.promote
    assert decision.reason.startswith("memory interval_score_90% on device d3 is")
    assert verdict(decision, "mape", "device d3") == "worse"
    assert verdict(decision, "mape", "device d2") == "within"


def test_the_table_begins_with_what_rejects_and_by_how_much_it_misses(policy, capsys):
    champion = scored(devices=6, jobs=150)
    decision = decide(champion, scored(seed=1, devices=6, jobs=150, factor=2.0, on="d3"), policy)
    rows = rows_by_importance(decision)

    ranks = [
        0 if row.verdict in REJECTING_VERDICTS else 1 if row.verdict == BETTER else 2
        for row in rows
    ]
    assert ranks == sorted(ranks)
    assert ranks[0] == 0
    assert {row for row in decision.rows if not row.slice_name} <= set(rows)
    missed = [miss(row) or 0.0 for row in rows if row.verdict in REJECTING_VERDICTS]
    assert missed == sorted(missed, reverse=True)
    assert rows[0].at_most is not None
    assert missed[0] == pytest.approx(rows[0].challenger / rows[0].at_most - 1)

    print_table(decision)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert "on device d3" in lines[0]
    assert re.search(r" \d+ % over [\d.]+ │ worse", lines[1])
    assert max(map(len, lines)) <= 80


def test_a_coverage_below_its_bounds_is_under_the_limit(policy, capsys):
    print_table(decide(scored(), scored(seed=1, width=0.2), policy))

    assert re.search(r"coverage_90% .* \d+ % under [\d.]+ │ out of bounds", capsys.readouterr().out)


def test_a_slice_does_not_promote_and_needs_enough_jobs(policy):
    champion, challenger = scored(devices=3), scored(devices=3, factor=0.5, on="d1")
    rows = decide(champion, challenger, policy).rows
    few = GatePolicy(**asdict(policy) | {"min_jobs": 21})

    assert verdict(decide(champion, challenger, policy), "mape", "device d1") == "within"
    assert {row.slice_name for row in rows} >= {"device d0", "device d1", "family f0", "family f1"}
    assert not {r.slice_name for r in decide(champion, challenger, few).rows} & {"device d1"}


def test_rows_of_one_job_count_as_one_observation(policy):
    one = held_out(jobs=20)
    many = replace(one, jobs=np.array([f"job-{i}" for i in range(60)], object))
    errors = {
        name: next(
            iter(
                paired_changes(
                    {"memory": was},
                    {"memory": replace(was, median=was.measured * 1.1)},
                    resamples=2000,
                    seed=0,
                    min_jobs=8,
                )
            )
        ).rise_error
        for name, was in (("jobs", one), ("rows", many))
    }

    assert errors["jobs"] > 1.15 * errors["rows"]  # half of a job's error is its rows' in common


def test_paired_changes_use_the_reported_figures():
    champion, challenger = held_out(jobs=31), held_out(1, jobs=31, factor=1.3)
    found = list(
        paired_changes({"a": champion}, {"a": challenger}, resamples=100, seed=0, min_jobs=100)
    )

    before, after = champion.figures(), challenger.figures()
    intervals = ("interval_width", "interval_score")  # of each coverage
    assert set(intervals) < set(gate.COMPARED_METRICS)
    assert {c.metric for c in found} == {
        m for m in after if m in gate.COMPARED_METRICS or m.startswith(intervals)
    }
    for change in found:
        assert change.champion == pytest.approx(before[change.metric])
        assert change.challenger == pytest.approx(after[change.metric])


def test_the_standard_error_of_a_mean_is_the_textbook_one():
    old, new = held_out(jobs=40), held_out(1, jobs=40)
    found = next(
        iter(paired_changes({"a": old}, {"a": new}, resamples=20_000, seed=0, min_jobs=99))
    )
    rise = (np.abs(new.median - new.measured) - np.abs(old.median - old.measured)) / old.measured
    job_mean = 100 * rise.reshape(40, 3).mean(axis=1)

    assert found.metric == "mape"
    assert found.rise_error == pytest.approx(job_mean.std(ddof=1) / np.sqrt(40), rel=0.02)


def test_narrower_intervals_are_better_only_if_their_score_is(policy):
    champion, narrow = scored(), scored(width=0.9)
    decision = decide(champion, narrow, GatePolicy(**asdict(policy) | {"min_improvement": 0.0}))

    assert verdict(decision, "interval_width_90%") == "within"
    assert verdict(decide(champion, scored(width=1.5), policy), "interval_width_90%") == "worse"


@pytest.mark.parametrize("width", [0.3, 4.0])
def test_intervals_with_wrong_coverage_are_rejected(policy, width):
    for champion in (scored(jobs=400), None):
        decision = decide(champion, scored(jobs=400, width=width, factor=0.9), policy)

        assert not decision.promote
        assert verdict(decision, "coverage_80%") == "out of bounds"
    assert "memory coverage_80% is" in decision.reason


def test_coverage_bounds_are_wide_for_few_jobs_and_tight_for_many(policy):
    low = [coverage_bounds(0.9, jobs, policy)[0] for jobs in (10, 100, 1000, 100_000)]

    assert low == sorted(low)
    assert low[0] <= 60
    assert 84 < low[-1] < 85
    assert coverage_bounds(0.9, 10, policy)[1] == 100


def test_the_bounds_reject_a_calibrated_release_as_rarely_as_configured(policy):
    covered = np.random.default_rng(0).binomial(50, 0.75, 20_000) * 2  # percent of 50 jobs
    refused = (covered < coverage_bounds(0.8, 50, policy)[0]).mean()

    assert 0.001 < refused <= policy.coverage_risk


@pytest.mark.parametrize(
    ("before", "now", "promoted"),
    [(20, 45, True), (40, 81, False), (40, 79, True), (400, 501, False), (None, 501, False)],
)
def test_latency_is_bounded_and_must_not_double(policy, before, now, promoted):
    champion = None if before is None else scored(latency_us=before)
    decision = decide(champion, scored(latency_us=now, factor=0.5, width=0.6), policy)

    assert decision.promote is promoted
    if not promoted:
        assert decision.reason == "memory is too slow"  # the microseconds differ from run to run


def test_a_release_that_grew_too_large_is_rejected(policy):
    better = scored(factor=0.5, width=0.6)
    for champion, size in ((scored(), 3001), (None, 10_000_001)):
        decision = decide(champion, replace(better, size_bytes=size), policy)
        assert not decision.promote
        assert f"release size_bytes is {size:.4g}, at most" in decision.reason
    assert decide(scored(), replace(better, size_bytes=3000), policy).promote


def test_fewer_jobs_in_domain_is_worse_and_more_is_not_better(policy):
    home = held_out()
    half = replace(home, in_domain=np.arange(len(home.jobs)) // 3 % 2 == 0)
    fewer = decide(scored(home), scored(half), policy)

    assert verdict(fewer, "in_domain") == "worse"
    assert "memory in_domain is 50, at least 90 is required" in fewer.reason
    assert verdict(decide(scored(half), scored(home), policy), "in_domain") == "within"


def test_a_first_release_is_judged_by_the_bounds(policy):
    decision = decide(None, scored(), policy)

    assert decision.promote
    assert verdict(decision, "mape") == "not compared"


def test_a_release_trained_on_a_held_out_job_is_rejected(policy):
    better = scored(factor=0.5, width=0.6)
    cheat = replace(better, trained_on=frozenset({job_digest("job-7"), job_digest("another")}))
    silent = replace(better, trained_on=None)

    assert decide(scored(), better, policy).promote
    for champion in (scored(), None):
        reason = decide(champion, cheat, policy).reason
        assert reason == "the release was trained on 1 of the 60 held-out jobs: job-7"
        assert "does not record its training jobs" in decide(champion, silent, policy).reason
        assert not decide(champion, cheat, policy).promote


def test_a_policy_has_a_tolerance_for_every_metric(policy):
    fields = asdict(policy)
    with pytest.raises(TypeError, match="patience"):
        GatePolicy(**fields | {"patience": 3})
    with pytest.raises(ValueError, match=r"promote\.tolerance names"):
        GatePolicy(**fields | {"tolerance": {"mape": 0.1}})
    with pytest.raises(ValueError, match=r"promote\.mape=-1"):
        GatePolicy(**fields | {"tolerance": fields["tolerance"] | {"mape": -1}})
    with pytest.raises(ValueError, match=r"promote\.confidence=1"):
        GatePolicy(**fields | {"confidence": 1.0})


# Scores of real ONNX files


def test_the_true_model_has_the_expected_scores(releases, tables):
    found = score_release(releases["good"], *tables)
    figures = found.figures()

    assert list(figures) == list(releases["good"].predictors)
    for predictor, of_predictor in figures.items():
        assert of_predictor["mape"] == pytest.approx(8, abs=2.5), predictor  # 10 % x sqrt(2 / pi)
        assert of_predictor["coverage_80%"] == pytest.approx(80, abs=12), predictor
        assert of_predictor["interval_width_90%"] == pytest.approx(33, abs=4), predictor
        assert 0 < of_predictor["latency_us"] < 10_000
    assert found.size_bytes == sum(p.stat().st_size for p in releases["good"].folder.iterdir())
    assert found.trained_on == frozenset()
    assert figures["memory"]["jobs"] == figures["memory"]["rows"]
    assert figures["interference"]["jobs"] < figures["interference"]["rows"]


def test_only_held_out_jobs_are_scored(releases, tables):
    from presage.models.training.splits import HELD_OUT_FOLD, job_folds

    solo, interference = (table.copy() for table in tables)
    for table, column in ((solo, "memory_peak_bytes"), (interference, "slowdown")):
        training = job_folds(list(table["job_id"])) != HELD_OUT_FOLD
        table.loc[training, column] = 1e9
    before, after = (
        score_release(releases["good"], *given).figures()
        for given in (tables, (solo, interference))
    )

    for predictor in ("memory", "interference"):
        assert after[predictor]["mape"] == before[predictor]["mape"]


def test_the_order_of_rows_and_members_does_not_matter(releases, tables):
    solo, interference = (table.sample(frac=1, random_state=1) for table in tables)
    before, after = (
        score_release(releases["good"], *given).figures()
        for given in (tables, (solo, interference))
    )

    assert after["interference"]["mape"] == pytest.approx(before["interference"]["mape"])


def test_without_held_out_jobs_scoring_fails(releases, tables):
    solo, interference = tables
    with pytest.raises(TrainingError, match="held out to evaluate compute_utilization"):
        score_release(releases["good"], solo.iloc[:0], interference)
    with pytest.raises(TrainingError, match="held out to evaluate interference"):
        score_release(releases["good"], solo, interference.iloc[:0])
    with pytest.raises(TableError, match="has no solo measurement on 'm'"):
        score_release(releases["good"], solo, interference.assign(campaign="other"))


def test_a_network_that_violates_the_contract_cannot_be_scored(make_release, tables, tmp_path):
    crossing = make_release(tmp_path / "crossing", spread=-0.1)
    with pytest.raises(ReleaseError, match="quantiles that cross"):
        score_release(crossing, *tables)


# The stage


@pytest.fixture
def run(tmp_path, monkeypatch, policy, features_dir):
    """Function that runs the stage on a release and returns the bytes of the decision file."""
    calm = asdict(policy) | {"latency_us": 1e5, "latency_ratio": 1e3}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"promote": calm}))
    monkeypatch.chdir(tmp_path)

    def main(which, *options):
        stage.main([str(which.folder), str(features_dir), "decision.json", *options])
        return (tmp_path / "decision.json").read_bytes()

    return main


@pytest.fixture
def registry(uri, monkeypatch):
    monkeypatch.setenv("PRESAGE_REGISTRY", uri)
    return Registry(uri)


def outcome(content):
    return json.loads(content)["outcome"]


def test_a_better_release_is_promoted_and_a_worse_one_is_not(run, registry, releases, capsys):
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
    assert "already the champion: nothing to do" in capsys.readouterr().out
    assert registry.versions() == before


def test_a_second_run_of_a_rejected_release_changes_nothing(run, registry, releases, monkeypatch):
    run(releases["good"])
    refused = run(releases["blind"])
    monkeypatch.setattr(stage, "judge", None)
    before = registry.versions()

    assert run(releases["blind"]) == refused
    assert registry.versions() == before


def test_the_decision_file_is_the_same_on_another_registry(
    run, registry, releases, tmp_path, empty_database, monkeypatch
):
    first = run(releases["good"])
    (tmp_path / "other").mkdir()
    shutil.copy(empty_database, tmp_path / "other" / "mlflow.db")
    monkeypatch.setenv("PRESAGE_REGISTRY", f"sqlite:///{tmp_path}/other/mlflow.db")

    assert run(releases["good"]) == first  # the microseconds are others


def test_a_lost_decision_file_is_restored_from_the_registry(run, registry, releases, tmp_path):
    content = run(releases["good"])
    (tmp_path / "decision.json").unlink()

    assert run(releases["good"]) == content


def test_a_rolled_back_release_is_not_promoted_again(run, registry, releases):
    run(releases["poor"])
    run(releases["good"])
    registry.rollback()
    content = run(releases["good"])

    assert outcome(content) == "not promoted"
    assert f"presage models promote {releases['good'].release_id}" in content.decode()
    assert registry.champion().release_id == releases["poor"].release_id
    assert run(releases["good"]) == content


def test_a_champion_with_another_schema_is_not_comparable(
    run, registry, releases, make_release, tmp_path, monkeypatch
):
    with monkeypatch.context() as other:
        for module in (release, release_content):
            other.setattr(module, "schema_hash", lambda feature_set: "another")
        foreign = make_release(tmp_path / "foreign")
    registry.promote(registry.register(foreign, {}))
    content = json.loads(run(releases["poor"]))

    assert content["outcome"] == "promoted"
    assert f"champion {foreign.release_id} cannot be scored" in content["reason"]
    assert "another" in content["reason"]
    assert str(tmp_path) not in content["reason"]


def stored(registry, version):
    """Return the folder of a version's files, next to the database."""
    run_id = registry.resolve(version).run_id
    return Path(registry.uri.removeprefix("sqlite:///")).parent.joinpath(
        "artifacts", run_id, "artifacts", "release"
    )


def one_byte(path, at):
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("what", ["a network", "the format", "the schema", "no file", "another's"])
def test_a_corrupt_champion_stops_the_gate_until_it_is_registered_again(
    run, registry, releases, make_release, tmp_path, monkeypatch, what
):
    good, poor = releases["good"], releases["poor"]
    registry.promote(registry.register(good, {}))
    folder = stored(registry, 1)
    manifest = (folder / "release.json").read_bytes()
    if what == "a network":
        one_byte(folder / "step_time.onnx", 200)
    elif what == "the format":  # looks like an older version's
        one_byte(folder / "release.json", manifest.index(b'"format": ') + len('"format": '))
    elif what == "the schema":
        one_byte(folder / "release.json", manifest.index(b'"schema_hash": "') + 20)
    elif what == "no file":
        (folder / "memory.onnx").unlink()
    else:
        with monkeypatch.context() as other:
            for module in (release, release_content):
                other.setattr(module, "schema_hash", lambda feature_set: "another")
            foreign = make_release(tmp_path / "foreign")
        shutil.copytree(foreign.folder, folder, dirs_exist_ok=True)

    with pytest.raises(RegistryError, match=r"no release is promoted .*: version 1 ") as caught:
        run(poor)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(
        f"`presage models register DIR`, with DIR an intact folder of release {good.release_id}"
    )
    assert registry.champion().version == 1
    assert registry.resolve(2).decision is None
    assert not (tmp_path / "decision.json").exists()

    registry.register(good, {})
    assert outcome(run(poor)) == "not promoted"  # within all bounds


def test_a_champion_corrupted_in_transit_is_fetched_again(run, registry, releases, monkeypatch):
    registry.promote(registry.register(releases["good"], {}))
    registry.register(releases["poor"], {})
    fetch, fetched = StoredReleases.fetch, []

    def damaged_once(self, known, to, *arguments):
        fetch(self, known, to, *arguments)
        if known.version == 1:
            fetched.append(to)
            if len(fetched) == 1:
                one_byte(to / "step_time.onnx", 200)

    monkeypatch.setattr(StoredReleases, "fetch", damaged_once)
    content = json.loads(run(releases["poor"]))

    assert len(fetched) == 2
    assert content["outcome"] == "not promoted"
    assert content["champion"] == releases["good"].release_id
    assert "cannot be scored" not in content["reason"]


def test_a_champion_promoted_meanwhile_stays(run, registry, releases, monkeypatch):
    run(releases["poor"])
    judge = stage.judge

    def slowly(*arguments):
        registry.promote(registry.register(releases["blind"], {}))
        return judge(*arguments)

    monkeypatch.setattr(stage, "judge", slowly)
    with pytest.raises(
        RegistryError, match=r"was made champion first, by \S+ at .* \(journal entry 2, gate"
    ):
        run(releases["good"])
    assert registry.champion().release_id == releases["blind"].release_id


def test_a_dry_run_prints_the_table_and_changes_nothing(run, registry, releases, tmp_path, capsys):
    run(releases["poor"])
    before = registry.versions(), registry.journal(), (tmp_path / "decision.json").read_bytes()
    capsys.readouterr()
    run(releases["good"], "--dry-run")

    output = capsys.readouterr().out
    assert "gate, on the held-out jobs" in output
    assert f"nothing was changed: release {releases['good'].release_id} promoted: " in output
    assert before == (
        registry.versions(), registry.journal(), (tmp_path / "decision.json").read_bytes()
    )  # fmt: skip


def test_the_decision_table_is_stored_in_mlflow_and_for_dvc(run, registry, releases, uri):
    from mlflow.artifacts import load_dict
    from mlflow.tracking import MlflowClient

    run(releases["poor"])
    decided = json.loads(run(releases["good"]))
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("presage").experiment_id
    run_info = client.search_runs(
        [experiment], "tags.outcome = 'promoted' and tags.champion != ''"
    )[0]
    table = load_dict(f"{run_info.info.artifact_uri}/table.json")

    assert len(client.search_runs([experiment])) == 2  # one of each release
    assert run_info.data.tags["release_id"] == releases["good"].release_id
    assert run_info.data.tags["reason"] == decided["reason"]
    assert run_info.data.metrics["challenger.memory.mape"] == pytest.approx(
        decided["figures"]["memory"]["mape"], rel=1e-3
    )
    assert len(table) == sum(decided["verdicts"].values()) >= len(decided["rows"])
    assert all(row["challenger"] > 0 for row in table if row["metric"] == "latency_us")


def test_a_champion_promoted_by_a_person_stays_whatever_the_gate_decided(run, registry, releases):
    run(releases["good"])
    refused = json.loads(run(releases["poor"]))
    assert refused["outcome"] == "not promoted"
    registry.promote(2, verdict="forced", by="ada@lab")

    for _ in range(2):
        decided = json.loads(run(releases["poor"]))
        assert decided["outcome"] == "promoted"
        assert decided["reason"] == (
            f"promoted by a person; the gate had decided: {refused['reason']}"
        )
        assert decided["rows"] == refused["rows"]


def test_a_champion_trained_on_held_out_jobs_is_not_comparable(
    run, registry, releases, make_release, tables, tmp_path
):
    training = [job_digest(job) for job in tables[0]["job_id"]]
    flattered = make_release(tmp_path / "flattered", trained_on=training)
    registry.promote(registry.register(flattered, {}))
    content = json.loads(run(releases["poor"]))

    assert content["outcome"] == "promoted"
    assert (
        f"champion {flattered.release_id} cannot be scored: it was trained on"
        in (content["reason"])
    )
    assert "was trained on" in json.loads(run(flattered))["reason"]


def test_no_heavy_import_if_the_release_is_already_champion(run, registry, releases):
    run(releases["good"])
    code = (
        "import sys; from presage.pipelines.stages import promote\n"
        f"promote.main([{str(releases['good'].folder)!r}, 'features', 'decision.json'])\n"
        "assert not {'mlflow', 'pandas', 'onnxruntime', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_decision_file_has_bounds_but_no_microseconds(run, registry, releases):
    rows = json.loads(run(releases["good"]))["rows"]
    latency = [row for row in rows if row["metric"] == "latency_us"]

    assert len(latency) == 4
    assert all(row["challenger"] is None and row["verdict"] == gate.WITHIN for row in latency)
    assert all(row["at_least"] for row in rows if row["metric"].startswith("coverage"))
