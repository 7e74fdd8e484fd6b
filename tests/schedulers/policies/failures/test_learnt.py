"""The policy `learnt`: fallback, explanations, priorities, kinds, damaged releases."""

from __future__ import annotations

import copy
import json
import math
import pickle
import sys

import numpy as np
import onnxruntime
import pytest

from presage.errors import ConfigError, ReleaseError
from presage.schedulers.core.cluster import Cluster, Node
from presage.schedulers.forecasters.no_forecasts import NoForecasts
from presage.schedulers.policies.failures.expected import Expected
from presage.schedulers.policies.failures.hazards import FixedHazards
from presage.schedulers.policies.failures.learnt.job_rows import JobRows
from presage.schedulers.policies.failures.learnt.learnt_policy import NO_RELEASE, Learnt
from presage.schedulers.policies.failures.learnt.placement_scorer import PlacementScorer
from presage.schedulers.policies.policy_registry import policy_of
from tests.schedulers.clusters import GIB, cluster, job, simulated

pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
HOUR_S = 3600.0
RATES = FixedHazards([1e-6, 4e-5, 2e-6, 3e-6])
JOBS = [job(f"{i}", float(i), gpus=1 + i % 3) for i in range(12)]
DURATIONS = {f"{i}": HOUR_S * (1 + 5 * i % 7) for i in range(12)}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    from tests.placement.learnt.releases import write_release

    return write_release(tmp_path_factory.mktemp("release"))


def changed_release(release, tmp_path, **changed):
    from tests.placement.learnt.releases import write_release

    return str(write_release(tmp_path / "changed", **changed))


def decisions(simulation):
    return simulation.log.entries


def expected(**options):
    policy = Expected(a=0.5, patience=0.7, hazards=RATES)
    return simulated(cluster(1, 1, 1, 1), policy, JOBS, DURATIONS, **options)


def learnt(folder, **options):
    return simulated(cluster(1, 1, 1, 1), Learnt(folder, RATES), JOBS, DURATIONS, **options)


def reasons(simulation, job_id):
    return [why for _, one, why in simulation.explanations if one == job_id]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema_hash": "0" * 12}, "its features are of schema 000000000000"),
        ({"domain": {"fewest_gpus": 8, "most_gpus": 32, "most_jobs_per_gpu": 3}},
         "4 devices are out of its domain of 8 to 32"),
    ],
)  # fmt: skip
def test_another_schema_or_size_falls_back_to_expected_with_a_reason(
    release, tmp_path, changed, why
):
    found = learnt(changed_release(release, tmp_path, **changed))
    assert decisions(found) == decisions(expected())
    assert why in found.policy.warning
    assert found.policy.warning.endswith("`expected` decides")
    assert found.policy.warning in reasons(found, "0")


def test_too_many_jobs_fall_back_only_as_long_as_they_are_too_many(release, tmp_path):
    domain = {"fewest_gpus": 1, "most_gpus": 8, "most_jobs_per_gpu": 1.5}
    found = learnt(changed_release(release, tmp_path, domain=domain))
    assert "jobs are out of its domain of at most 6" in found.policy.warning
    assert any("started it before" in one for i in range(12) for one in reasons(found, f"{i}"))


def test_scores_that_are_not_numbers_fall_back_to_expected_with_a_reason(release, tmp_path):
    from tests.placement.learnt.releases import random_scorer, write_release

    scorer = random_scorer()
    scorer.start.bias.data.fill_(math.nan)
    found = learnt(str(write_release(tmp_path / "nan", scorer)))
    assert decisions(found) == decisions(expected())
    assert "its scores are not finite numbers" in found.policy.warning


def test_scores_of_another_shape_fall_back_to_expected(release, monkeypatch):
    policy = Learnt(str(release), RATES)
    monkeypatch.setattr(onnxruntime.InferenceSession, "run", lambda *_: [np.zeros((1, 2))])
    found = simulated(cluster(1, 1, 1, 1), policy, JOBS, DURATIONS)
    assert decisions(found) == decisions(expected())
    assert "scores for" in policy.warning


def test_without_a_release_it_falls_back_to_expected_with_a_reason():
    policy = policy_of("learnt")
    assert policy.warning == ""
    found = simulated(cluster(1, 1), policy, JOBS[:2], DURATIONS)
    assert decisions(found) == decisions(simulated(cluster(1, 1), Expected(), JOBS[:2], DURATIONS))
    assert NO_RELEASE in policy.warning


def test_a_start_names_the_failure_rates_and_what_was_avoided(release):
    found = simulated(cluster(1, 1, 1, 1), Learnt(str(release), RATES), [job("a", gpus=2)],
                      {"a": HOUR_S})  # fmt: skip
    (text,) = reasons(found, "a")
    assert "on devices that fail at 0.259 a day" in text
    assert "with 1.07 % until its end" in text
    assert text.endswith("avoided n1 (3.46 a day), n3 (0.259 a day)")
    assert found.policy.warning == ""


def test_the_explanation_of_a_waiting_job_has_a_reason(release, tmp_path):
    from tests.placement.learnt.releases import random_scorer, write_release

    scorer = random_scorer()
    scorer.wait.weight.data.zero_()
    scorer.wait.bias.data.fill_(1e3)
    texts = set()

    class Recording(Learnt):
        def decide(self, state, forecasts, rng):
            actions = super().decide(state, forecasts, rng)
            texts.add(self.explanation("b"))
            return actions

    folder = str(write_release(tmp_path / "waits", scorer))
    policy = Recording(folder, FixedHazards([1e-6, 1e-4]))
    jobs, lengths = [job("a"), job("b", 1.0)], {"a": HOUR_S, "b": HOUR_S}
    simulation = simulated(cluster(1, 1), policy, jobs, lengths)
    assert [one.end_s for one in simulation.results] == [HOUR_S, 2 * HOUR_S]
    assert any(
        " waits: on the idle devices it fails at 8.64 a day and is expected to end in " in text
        and "; on devices that running jobs release, in 2.01 h" in text
        for text in texts
    )


def test_jobs_of_a_higher_priority_are_scored_first(release):
    jobs = [job("low", gpus=4), job("high", gpus=4, priority=1)]
    found = simulated(cluster(1, 1, 1, 1), Learnt(str(release), RATES), jobs,
                      {"low": 9 * HOUR_S, "high": 5.0})  # fmt: skip
    assert [one.job.job_id for one in found.results] == ["high", "low"]


def test_jobs_start_on_allowed_kinds_only_and_gangs_stay_on_a_node(release):
    nodes = (Node("a", 2, "v100", GIB), Node("b", 2, "h100", GIB), Node("c", 4, "h100", GIB))
    jobs = [job("fast", gpus=2, kinds=("h100",)), job("any", gpus=3)]
    policy = Learnt(str(release), FixedHazards([1e-7] * 2 + [5e-6, 1e-6] + [2e-6] * 4))
    found = simulated(Cluster(nodes), policy, jobs, {"fast": 5.0, "any": 5.0})
    placed = {one: [g.device for g in more] for _, what, one, more in found.log.entries
              if what == "start"}  # fmt: skip
    assert set(placed["fast"]) <= {2, 3, 4, 5, 6, 7}
    assert set(placed["any"]) <= {4, 5, 6, 7}
    assert len(found.results) == 2


def test_rows_that_are_kept_between_decisions_change_no_decision(release, monkeypatch):
    kept, read = learnt(str(release)), JobRows.read
    monkeypatch.setattr(JobRows, "read", lambda _, *arguments: read(JobRows(), *arguments))
    assert decisions(learnt(str(release))) == decisions(kept)


def test_jobs_without_forecasts_start_too(release):
    found = learnt(str(release), forecaster=NoForecasts())
    assert len(found.results) == len(JOBS)


def test_the_same_inputs_give_the_same_log_and_copies_decide_the_same(release):
    policy = Learnt(str(release), RATES)
    logs = [
        simulated(cluster(1, 1, 1, 1), one, JOBS, DURATIONS).log.entries
        for one in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy)), policy)
    ]
    assert logs[0] == logs[1] == logs[2]


def test_a_changed_file_is_rejected(release, tmp_path):
    folder = changed_release(release, tmp_path)
    path = tmp_path / "changed" / "placement.onnx"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ReleaseError, match="the file was changed"):
        policy_of(f"learnt:release={folder}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{}", "not a placement release of format 2"),
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"kind": "placement"}', "not a placement release"),
    ],
)
def test_a_folder_that_is_no_placement_release_is_rejected(tmp_path, content, why):
    (tmp_path / "release.json").write_text(content)
    with pytest.raises(ReleaseError, match=why):
        Learnt(str(tmp_path))


def test_a_changed_manifest_is_rejected(release, tmp_path):
    folder = changed_release(release, tmp_path)
    path = tmp_path / "changed" / "release.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rule": {}}))
    with pytest.raises(ReleaseError, match="does not match its release_id"):
        Learnt(folder)


def test_a_missing_folder_and_a_missing_onnx_runtime_are_one_line(release, monkeypatch, tmp_path):
    with pytest.raises(ReleaseError, match="cannot be read"):
        policy_of(f"learnt:release={tmp_path / 'missing'}")
    with pytest.raises(ReleaseError, match="cannot load it"):
        PlacementScorer(b"no model")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"pip install 'presage\[serve\]'"):
        policy_of(f"learnt:release={release}")
