import functools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import (
    INFERENCE,
    OPTIMIZERS,
    make_optimizer,
    supervised,
)
from presage.pipelines.profiling.zoo import FAMILIES, JobConfig, all_configs, build, parse
from presage.pipelines.profiling.zoo.mlp import mlp

TRAINED = [name for name, family in FAMILIES.items() if family.optimizer != INFERENCE]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@functools.cache
def smallest(family: str) -> JobConfig:
    """Return the variant with the fewest parameters, at the smallest batch."""

    def parameters(config: JobConfig) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in build(config).parameters())

    of_family = [c for c in all_configs() if c.family == family]
    batch_size = min(c.batch_size for c in of_family)
    return min((c for c in of_family if c.batch_size == batch_size), key=parameters)


@pytest.mark.parametrize("family", TRAINED)
def test_one_step_reaches_every_trained_parameter_and_changes_them(family):
    step = build(smallest(family))
    trained = [p for p in step.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in trained]

    step.run()

    assert trained
    assert all(p.grad is not None for p in trained)
    assert all(torch.isfinite(p).all() for p in step.parameters())
    # Not all: a scale that the next batch norm divides out again has no gradient.
    moved = [not torch.equal(p, old) for p, old in zip(trained, before, strict=True)]
    assert sum(moved) > 0.9 * len(moved)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(TRAINED)))
def test_inference_changes_nothing(family):
    step = build(smallest(family))
    before = [p.detach().clone() for p in step.parameters()]

    step.run()

    assert all(p.grad is None and not p.requires_grad for p in step.parameters())
    assert all(torch.equal(p, old) for p, old in zip(step.parameters(), before, strict=True))


@pytest.mark.parametrize("config", all_configs()[::6], ids=lambda c: c.name)
def test_a_step_runs_on_the_meta_device_where_nothing_is_allocated(config):
    with torch.device("meta"):
        step = build(config)
        step.run()
        step.run()  # with the optimizer's state already there

    parameters = step.parameters()
    assert parameters
    assert all(p.is_meta for p in parameters)
    assert all(b.is_meta for module in step.modules for b in module.buffers())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_works_outside_the_device_context_that_built_it(family):
    with torch.device("meta"):
        step = build(smallest(family))

    step.run()

    assert all(p.grad is None or p.grad.is_meta for p in step.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_input_elements_do_not_depend_on_the_batch(family):
    config = smallest(family)
    with torch.device("meta"):
        one = build(config)
        two = build(JobConfig(family, config.variant, 2 * config.batch_size, config.optimizer))

    assert one.input_elements == two.input_elements >= 1


@functools.cache
def trains_lstm_in_bf16():
    """Return whether this processor can: oneDNN needs AVX-512."""
    lstm, x = torch.nn.LSTM(8, 8), torch.zeros(2, 1, 8)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            lstm(x)
    except RuntimeError as error:
        if "primitive descriptor" not in str(error):
            raise
        return False
    return True


@pytest.mark.parametrize("family", FAMILIES)
def test_a_job_runs_in_bf16_with_trained_weights_in_fp32(family):
    if family == "lstm_lm" and not trains_lstm_in_bf16():
        pytest.skip("torch trains no LSTM in bf16 on this processor")
    step = build(replace(smallest(family), precision="bf16"))

    step.run()

    assert {p.dtype for p in step.parameters() if p.requires_grad} <= {torch.float32}
    assert all(torch.isfinite(p).all() for p in step.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_in_bf16_runs_too(family):
    step = build(replace(smallest(family), optimizer="inference", precision="bf16"))

    step.run()

    assert all(torch.isfinite(p).all() for p in step.parameters())


def test_frozen_weights_are_in_half_precision_on_meta_too():
    with torch.device("meta"):
        lora = build(replace(smallest("lora"), precision="bf16"))
    matrices = [p for p in lora.parameters() if p.ndim >= 2]

    assert {p.dtype for p in matrices if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in matrices if not p.requires_grad} == {torch.bfloat16}


def test_bf16_computes_in_bf16():
    step = build(parse("mlp/w128-d2/b8/sgd/bf16"))
    (model,) = step.modules
    seen = []
    first = model.get_submodule("0")
    first.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))

    step.run()

    assert seen == [torch.bfloat16]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_overfitting_one_batch_lowers_the_loss(optimizer):
    images, labels, losses = torch.randn(32, 784), torch.randint(10, (32,)), []

    def loss(logits: torch.Tensor) -> torch.Tensor:
        losses.append(F.cross_entropy(logits, labels))
        return losses[-1]

    step = supervised(mlp(64, 1), (images,), loss, optimizer=optimizer, input_elements=784)
    for _ in range(30):
        step.run()

    assert losses[-1] < 0.5 * losses[0]


def test_a_gan_step_trains_both_networks():
    step = build(smallest("dcgan"))
    before = [[p.detach().clone() for p in module.parameters()] for module in step.modules]

    step.run()

    for module, old in zip(step.modules, before, strict=True):
        pairs = zip(module.parameters(), old, strict=True)
        assert all(not torch.equal(p, q) for p, q in pairs)


def test_the_grid_is_wide_ordered_and_free_of_duplicates():
    grid = all_configs()
    keys = [(c.family, c.variant, c.batch_size) for c in grid]

    assert 150 <= len(grid) <= 500
    assert len(FAMILIES) >= 10
    assert len({c.name for c in grid}) == len(grid)
    assert keys == sorted(keys)
    assert all(len(f.variants) >= 3 and len(f.batch_sizes) >= 3 for f in FAMILIES.values())
    assert all(name == family.name for name, family in FAMILIES.items())


def test_every_name_round_trips_to_its_config():
    assert [parse(c.name) for c in all_configs()] == list(all_configs())


def test_a_precision_other_than_fp32_is_part_of_the_name():
    config = JobConfig("resnet", "w16-d20", 32, "adam", "bf16")

    assert config.name == "resnet/w16-d20/b32/adam/bf16"
    assert parse(config.name) == config


@pytest.mark.parametrize("name", ["", "resnet", "resnet/w16-d20/32/sgd", "a/b/b1/sgd/bf16/more"])
def test_the_error_of_an_invalid_name_shows_the_form(name):
    with pytest.raises(ValueError, match="resnet/w16-d20/b32/sgd"):
        parse(name)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (JobConfig("resnets", "w16-d20", 32), "did you mean 'resnet'"),
        (JobConfig("resnet", "w16-d21", 32), "did you mean 'w16-d20'"),
        (JobConfig("resnet", "w16-d20", 0), "batch_size=0, must be >= 1"),
        (JobConfig("resnet", "w16-d20", 2, optimizer="lion"), "use one of sgd, adam, adamw"),
        (JobConfig("resnet", "w16-d20", 2, precision="fp8"), "use one of fp32, tf32, bf16, fp16"),
    ],
)
def test_the_error_of_an_invalid_config_has_a_remedy(config, says):
    with pytest.raises(ValueError, match=says):
        build(config)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'lion' is not known; use one of sgd, adam, adamw"):
        make_optimizer("lion", [])
