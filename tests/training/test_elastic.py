"""The interface of a worker: a single worker, wrong use, gradients that are not finite."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from presage.errors import ElasticError
from presage.training import elastic
from presage.training.worker.training_state import TrainingState
from tests.training.support.job import running
from tests.training.support.laws import check_equals_uninterrupted, check_exactly_once
from tests.training.support.worker_process import data, make_model, train


def begin(**changes):
    model = make_model()
    arguments = {"samples": 96, "batch": 12} | changes
    return model, elastic.begin(model, torch.optim.SGD(model.parameters(), lr=0.1), **arguments)


def test_importing_training_does_not_import_torch():
    code = "import presage.training.elastic, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_single_worker_trains_as_a_loop_of_torch_would():
    x, y = data()
    model, run = begin()
    plain = make_model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    loss_fn = torch.nn.functional.binary_cross_entropy_with_logits
    for step in run.steps(epochs=2):
        loss = loss_fn(model(x[step.indices]), y[step.indices])
        loss.backward()
        assert run.apply(loss)
        optimizer.zero_grad()
        loss_fn(plain(x[step.indices]), y[step.indices]).backward()
        optimizer.step()
        assert run.loss == pytest.approx(loss.item())

    assert (run.cursor.step, run.cursor.epoch) == (16, 2)
    for one, other in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_s5_gradients_are_summed_over_shards_and_every_worker_applies_the_sum(tmp_path):
    with running(tmp_path, workers=3) as job:
        options = {"samples": 50, "batch": 11}  # uneven shards, and a last batch of 6
        job.start("a", "b", "c", **options)
        results = job.finish()

        assert results["a"]["parameters"] == results["b"]["parameters"]
        assert results["a"]["parameters"] == results["c"]["parameters"]
        check_exactly_once(job, samples=50, batch=11)
        check_equals_uninterrupted(job, **options)


def test_s2_a_worker_without_a_sample_in_the_last_batch_takes_part_with_zeros(tmp_path):
    with running(tmp_path, workers=3) as job:
        options = {"samples": 38, "batch": 12}  # the last batch has 2
        job.start("a", "b", "c", **options)
        job.finish()

        check_equals_uninterrupted(job, **options)


def test_a_step_with_nan_on_one_worker_is_applied_nowhere_and_reported(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a")
        job.wait_ready(1)
        job.start("b", nan_step=3)
        results = job.finish()

        assert "step 3: gradient of rank 1 is not finite; the step is not applied" in job.log()
        assert results["a"]["moments"][0] == results["a"]["step"] - 1
        assert results["a"]["parameters"] == results["b"]["parameters"]


def test_one_worker_ends_the_training_of_all(tmp_path):
    with running(tmp_path, workers=2) as job:
        job.start("a")
        job.start("b", stop_at=6)
        results = job.finish()

        assert results["a"]["step"] == results["b"]["step"] == 8


def test_a_step_that_is_skipped_or_applied_twice_is_an_error():
    with pytest.raises(ElasticError, match="step 2 was not applied; call"):
        train({"skip_apply": 2}, lambda _: None)
    with pytest.raises(ElasticError, match="called twice in one iteration"):
        train({"twice": 2}, lambda _: None)
    _, run = begin()
    with pytest.raises(ElasticError, match="outside of steps"):
        run.apply()
    list(run.steps(epochs=0))
    with pytest.raises(ElasticError, match="call it once, with all epochs"):
        next(run.steps())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "the data set is empty"),
        ({"batch": 0}, "batch=0 is less than 1 workers"),
        ({"data_set_digest": "x" * 257}, "data_set_digest has 257 characters; at most 256 fit"),
        ({"batch": 4, "deterministic": True}, "batch=4 is less than virtual_shards=8"),
    ],
)
def test_impossible_arguments_are_rejected(changes, message):
    with pytest.raises(ElasticError, match=message):
        begin(**changes)


def test_a_model_wrapped_for_other_ranks_is_rejected():
    model = make_model()
    model.process_group = SimpleNamespace(size=lambda: 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ElasticError, match="wrapped for a process group of 4 ranks"):
        elastic.begin(model, optimizer, samples=96, batch=12)


def test_a_model_that_cannot_be_trained_is_rejected():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for one in model.parameters():
        one.requires_grad_(False)

    with pytest.raises(ElasticError, match="no trainable parameter"):
        elastic.begin(model, optimizer, samples=9, batch=3)


def test_a_job_continues_from_its_checkpoint(tmp_path):
    x, y = data()
    loss_fn = torch.nn.functional.binary_cross_entropy_with_logits
    path = tmp_path / "checkpoint"
    expected = make_model()
    for model, epochs in ((expected, 2), (make_model(), 1), (make_model(), 2)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        on_disk = {} if model is expected else {"checkpoint": path, "checkpoint_interval_s": 0.0}
        run = elastic.begin(model, optimizer, samples=96, batch=12, **on_disk)
        for step in run.steps(epochs=epochs):
            loss_fn(model(x[step.indices]), y[step.indices]).backward()
            run.apply()

    for one, other in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert step.number == 15


def save_one_epoch(path, **changes):
    """Train an epoch, and write a checkpoint to a file after each step."""
    x, y = data(96)
    model, run = begin(checkpoint=path, checkpoint_interval_s=0.0, **changes)
    for step in run.steps(epochs=1):
        loss_fn = torch.nn.functional.binary_cross_entropy_with_logits
        loss_fn(model(x[step.indices]), y[step.indices]).backward()
        run.apply()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 95}, r"another number of samples \(96, this script has 95\)"),
        ({"seed": 1}, r"another seed \(0, this script has 1\)"),
        ({"data_set_digest": "y"}, r"another digest of the data set \('x', this script has 'y'\)"),
    ],
)
def test_a_checkpoint_of_another_data_set_or_seed_is_rejected(tmp_path, changes, message):
    path = tmp_path / "job.ckpt"
    save_one_epoch(path, data_set_digest="x")

    with pytest.raises(ElasticError, match=f"job.ckpt: .*{message}; remove the file to start"):
        begin(checkpoint=path, **{"data_set_digest": "x"} | changes)
    _, run = begin(checkpoint=path, batch=24)  # the cursor counts samples, so this may change
    assert (run.cursor.epoch, run.cursor.position) == (1, 0)


def test_a_checkpoint_of_another_model_or_optimizer_is_rejected(tmp_path):
    path = tmp_path / "job.ckpt"
    save_one_epoch(path)

    for width, optimizer, message in (
        (16, torch.optim.SGD, "another model"),
        (8, torch.optim.Adam, "another optimizer"),
    ):
        model = make_model(width)
        with pytest.raises(ElasticError, match=message):
            elastic.begin(
                model, optimizer(model.parameters()), samples=96, batch=12, checkpoint=path
            )


def test_a_state_of_tensors_of_another_shape_is_rejected():
    states = [
        TrainingState(one, torch.optim.SGD(one.parameters(), lr=0.1), None)
        for one in (torch.nn.Linear(4, 1), torch.nn.Linear(4, 3))  # torch would repeat the one row
    ]
    with pytest.raises(ElasticError, match=r"does not fit .* shape \(1, 4\), not \(3, 4\)"):
        states[1].restore(states[0].capture())


def test_a_state_with_a_scheduler_is_rejected_by_a_worker_without_one():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = TrainingState(model, optimizer, None)
    scheduled = TrainingState(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10))

    for one, other in ((plain, scheduled), (scheduled, plain)):
        with pytest.raises(ElasticError, match="only one of both has a learning-rate scheduler"):
            one.restore(other.capture())


@pytest.mark.parametrize("content", [b"", b"text", b"\x80\x02}.", b"PK\x03\x04"])
def test_a_corrupt_checkpoint_is_reported_with_its_path(tmp_path, content):
    path = tmp_path / "job.ckpt"
    path.write_bytes(content)

    with pytest.raises(ElasticError, match=r"job.ckpt: the state is corrupt; remove") as error:
        begin(checkpoint=path)
    assert "\n" not in str(error.value)
