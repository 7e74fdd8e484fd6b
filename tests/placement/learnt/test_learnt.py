"""The policy ``learnt``: rollouts, training, export."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from presage.placement.core.batches import CHECKPOINTS, STRESS, draw_batches
from presage.placement.core.clusters import makespans_s
from presage.placement.core.rules import LARGEST, LEAST_FAILING, RULES, Rule, run_rule
from presage.placement.learnt import improvement
from presage.placement.learnt.export import export_onnx
from presage.placement.learnt.improvement import improve_rule, label
from presage.placement.learnt.placing import (
    GpuScorer,
    log_probability,
    roll_out_gpus,
    train_placing,
)
from presage.placement.learnt.rollout import follow_rule, joined, roll_out
from presage.placement.learnt.scorer import JobScorer
from presage.placement.learnt.training import (
    TrainingSettings,
    advantages,
    greedy,
    sampling,
    tensors,
    train,
)

RULE = Rule(order=LARGEST, exponent=0.5, choice=LEAST_FAILING, patience=0.7)
SMALL = replace(STRESS, gpus=6, jobs=8, job_gpus=(1, 2, 4))
SHORT = TrainingSettings(imitated=8, rounds=2, batches=4, repeats=2, validated=4, validate_every=1)


@pytest.mark.parametrize("world", [SMALL, replace(CHECKPOINTS, jobs=8)])
def test_following_the_rule_equals_the_rule(world):
    batches = draw_batches(world, 30, seed=1)
    clusters, _ = roll_out(batches, RULE, follow_rule)
    assert makespans_s(clusters) == pytest.approx(makespans_s(run_rule(batches, RULE)), rel=1e-9)


def test_before_training_the_most_likely_action_is_that_of_the_rule():
    batches = draw_batches(SMALL, 10, seed=2)
    clusters, _ = roll_out(batches, RULE, greedy(JobScorer()))
    assert makespans_s(clusters).tolist() == makespans_s(run_rule(batches, RULE)).tolist()


@pytest.mark.parametrize("gpus", [8, 64])
def test_one_scorer_serves_clusters_of_any_size(gpus):
    batches = draw_batches(replace(STRESS, gpus=gpus, jobs=2 * gpus), 2, seed=2)
    clusters, _ = roll_out(batches, RULE, sampling(JobScorer()))
    assert np.isfinite(makespans_s(clusters)).all()


def test_l4_actions_that_are_not_allowed_are_never_chosen():
    torch.manual_seed(1)
    batches = draw_batches(SMALL, 20, seed=3)
    _, steps = roll_out(batches, RULE, sampling(JobScorer()))
    found = joined(steps)
    assert found.observation.allowed[np.arange(len(found.action)), found.action].all()
    assert np.isfinite(found.observation.jobs).all()
    assert np.isfinite(found.observation.cluster).all()


def test_the_order_of_jobs_does_not_matter_to_the_scorer():
    torch.manual_seed(1)
    scorer = JobScorer()
    torch.nn.init.normal_(scorer.start.weight)
    _, steps = roll_out(draw_batches(SMALL, 4, seed=3), RULE, follow_rule)
    jobs, cluster, allowed, advised = tensors(joined(steps).observation)
    order = torch.randperm(jobs.shape[1])
    actions = torch.cat([order, torch.tensor([jobs.shape[1]])])
    found = scorer(jobs, cluster, allowed, advised).logits
    shuffled = scorer(jobs[:, order], cluster, allowed[:, actions], advised[:, actions]).logits
    assert torch.allclose(found[:, actions], shuffled, atol=1e-5)


def test_advantages_without_decay_are_returns_minus_values():
    value, cluster = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 0, 1])
    found, target = advantages(value, cluster, np.array([1.0, -1.0]), 1.0)
    assert found.numpy() == pytest.approx([0.9, -1.2, 0.7, -1.4])
    assert target.numpy() == pytest.approx([1.0, -1.0, 1.0, -1.0])


def test_the_same_seed_gives_the_same_bytes_and_onnx_equals_torch(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    scorers = [train((SMALL,), RULE, SHORT, seed=5) for _ in range(2)]
    hashes = [export_onnx(one, tmp_path / f"{i}.onnx") for i, one in enumerate(scorers)]
    assert hashes[0] == hashes[1]

    session = onnxruntime.InferenceSession(tmp_path / "0.onnx")
    _, steps = roll_out(draw_batches(replace(SMALL, jobs=11), 4, seed=6), RULE, follow_rule)
    observation = joined(steps).observation
    logits = session.run(["logits"], observation._asdict())[0]
    with torch.no_grad():
        expected = scorers[0](*tensors(observation)).logits.numpy()
    assert logits == pytest.approx(expected, abs=1e-3)


def test_before_training_the_gpu_scorer_is_least_failing_first():
    batches = draw_batches(SMALL, 10, seed=2)
    clusters, _ = roll_out_gpus(batches, GpuScorer(), samples=False)
    expected = makespans_s(run_rule(batches, RULES["least-failing"]))
    assert makespans_s(clusters).tolist() == expected.tolist()


def test_probabilities_of_draws_without_replacement_add_up_to_one():
    scores, idle = torch.tensor([[1.0, -0.5, 0.3, 9.0]]), torch.tensor([[True, True, True, False]])
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    total = sum(
        float(log_probability(scores, idle, torch.tensor([[*pair, -1]])).exp()) for pair in pairs
    )
    assert total == pytest.approx(1.0, abs=1e-5)


def test_a_trained_gpu_scorer_is_near_least_failing_first():
    scorer = train_placing(SMALL, seed=1, rounds=4, batches=4)
    batches = draw_batches(SMALL, 200, seed=9)
    found = makespans_s(roll_out_gpus(batches, scorer, samples=False)[0]).mean()
    assert found <= 1.03 * makespans_s(run_rule(batches, RULES["least-failing"])).mean()


def test_gains_of_actions_are_relative_to_the_action_of_the_rule():
    observation, gains = label(draw_batches(SMALL, 6, seed=1), RULE, np.random.default_rng(1),
                               explored=0.2)  # fmt: skip
    assert (gains[observation.advised] == 0).all()
    assert (np.isfinite(gains) <= observation.allowed).all()
    assert (gains[np.isfinite(gains)] < 1).all()
    assert np.nanmax(gains) > 0


@pytest.mark.parametrize(
    ("judged", "trust"), [([1.0, 0.9], 0.25), ([0.9, 1.001], 300.0)], ids=["not worse", "worse"]
)
def test_a_scorer_that_is_worse_on_another_size_decides_as_the_rule(monkeypatch, judged, trust):
    def ratios(scorer, worlds, rule):
        del scorer, rule
        assert [len(one.gpus[0]) for one in worlds] == [8, 6, 12]
        return [0.98, *judged]

    monkeypatch.setattr(improvement, "validation_ratios", ratios)
    others = [replace(SMALL, jobs=6), replace(SMALL, gpus=8, jobs=12)]
    scorer = improve_rule([SMALL], RULE, seed=1, labelled=4, epochs=1, validated=4, judged=others)
    assert float(scorer.trust.detach()) == trust


def test_a_scorer_departs_from_the_rule_only_where_it_wins_on_other_batches():
    scorer = improve_rule([SMALL], RULE, seed=1, labelled=20, epochs=2)
    batches = draw_batches(SMALL, 200, seed=9)
    found = makespans_s(roll_out(batches, RULE, greedy(scorer))[0]).mean()
    assert found <= 1.05 * makespans_s(run_rule(batches, RULE)).mean()
