import pytest
import torch
from torch import nn

from presage.errors import GraphError
from presage.features.from_torch.graph import trace_module, trace_step
from presage.features.graph.step_memory import MemoryEstimate
from presage.pipelines.profiling.running.training_step import inference

B, IN, OUT = 32, 40, 50
SMALL = 64  # bytes of losses and the like
WEIGHTS = 4 * (IN * OUT + OUT)


@pytest.fixture(autouse=True)
def _on_meta():
    with torch.device("meta"):
        yield


def memory(module, *inputs, **options):
    return trace_module(module, inputs, **options).memory


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_parameters_gradients_and_states_by_optimizer(optimizer, states):
    held = memory(nn.Linear(IN, OUT), torch.empty(B, IN), optimizer=optimizer)

    assert held.parameter_bytes == held.gradient_bytes == WEIGHTS
    assert held.optimizer_state_bytes == states * WEIGHTS


def test_the_batch_is_not_an_activation_although_it_is_saved():
    held = memory(nn.Sequential(nn.Flatten(), nn.Linear(IN, OUT)), torch.empty(B, 4, IN // 4))

    assert held.activation_bytes <= SMALL
    assert held.batch_bytes == 4 * B * IN


def test_the_batch_is_every_input_of_the_step_counted_once():
    module, data, target = nn.Linear(IN, OUT), torch.empty(B, 4, IN // 4), torch.empty(B, OUT)
    optimizer = torch.optim.Adam(module.parameters())

    def run():
        optimizer.zero_grad()
        ((module(data.flatten(1)) - target) ** 2 + module(data.view(B, IN))).mean().backward()
        optimizer.step()

    held = trace_step(run, [module], IN).memory

    assert held.batch_bytes == 4 * B * (IN + OUT)
    assert held.optimizer_state_bytes == 2 * WEIGHTS


def test_gradients_of_an_earlier_step_are_not_part_of_the_batch():
    module, data = nn.Linear(IN, OUT), torch.empty(B, IN)
    for parameter in module.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def run():
        optimizer.zero_grad(set_to_none=False)
        module(data).sum().backward()
        optimizer.step()

    held = trace_step(run, [module], IN).memory

    assert (held.batch_bytes, held.gradient_bytes) == (4 * B * IN, WEIGHTS)


def test_activations_are_the_values_that_the_backward_pass_reads():
    module = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, OUT), nn.Tanh())
    held = memory(module, torch.empty(B, IN))

    # The results of ReLU, read by its own gradient and the next weight's, and of tanh. What a
    # linear layer writes is freed as soon as the next operator has read it.
    assert held.activation_bytes == pytest.approx(2 * 4 * B * OUT, abs=SMALL)


def test_workspace_is_the_rest_of_the_peak():
    module = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh(), nn.Linear(OUT, OUT), nn.Tanh())
    graph = trace_module(module, [torch.empty(10_000, IN)], optimizer="sgd")
    held, one = graph.memory, 4 * 10_000 * OUT

    # Backward through the second layer: the first tanh's result is still there, the second's is
    # freed, and there are a gradient in, one out, and those of the layer's weights.
    assert held.activation_bytes == pytest.approx(2 * one, abs=SMALL)
    assert held.workspace_bytes == pytest.approx(one + 4 * (OUT * OUT + OUT), abs=SMALL)
    assert graph.peak_live_bytes == held.peak_bytes


def test_buffers_and_shared_weights_count_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(IN, IN, bias=False)
            self.second = nn.Linear(IN, IN, bias=False)
            self.second.weight = self.first.weight
            self.register_buffer("table", torch.empty(IN))

        def forward(self, x):
            return self.second(self.first(x)) + self.table

    held = memory(Tied(), torch.empty(B, IN))

    assert held.parameter_bytes == 4 * (IN * IN + IN)
    assert held.gradient_bytes == 4 * IN * IN


def test_frozen_weights_have_no_gradient_and_no_state():
    module = nn.Sequential(nn.Linear(IN, OUT), nn.Linear(OUT, 3))
    module[0].requires_grad_(False)
    held = memory(module, torch.empty(B, IN), optimizer="adam")

    assert held.parameter_bytes == WEIGHTS + 4 * (3 * OUT + 3)
    assert held.gradient_bytes == 4 * (3 * OUT + 3)
    assert held.optimizer_state_bytes == 2 * held.gradient_bytes


@pytest.mark.parametrize("training", [False, None])
def test_inference_saves_only_its_weights(training):
    module, data = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU()), torch.empty(B, IN)
    if training is False:
        graph = trace_module(module, [data], training=False)
    else:
        step = inference(module, (data,), input_elements=IN)
        graph = trace_step(step.run, step.modules, step.input_elements)

    workspace = 2 * 4 * B * OUT
    assert graph.memory == MemoryEstimate(WEIGHTS, 0, 0, 0, workspace, batch_bytes=4 * B * IN)
    assert graph.parameters == WEIGHTS // 4
    assert {n.phase for n in graph.nodes} == {"forward"}
    assert {n.op for n in graph.nodes} == {"aten.addmm", "aten.addmm.bias", "aten.relu"}


def test_inference_mode_decomposes_composite_operators_too():
    module, data = nn.Linear(IN, OUT), torch.empty(B, 3, IN)
    step = torch.inference_mode()(lambda: module(data))
    graph = trace_step(step, [module], IN)

    assert {n.kind for n in graph.nodes} == {"MatMul", "BiasAdd"}


def test_two_optimizers_and_two_backward_passes_add_up():
    nets = [nn.Linear(IN, OUT), nn.Linear(OUT, IN)]
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    data = [torch.empty(B, IN), torch.empty(B, OUT)]

    def run():
        for net, optimizer, batch in zip(nets, optimizers, data, strict=True):
            optimizer.zero_grad()
            net(batch).relu().sum().backward()
            optimizer.step()

    held = trace_step(run, nets, IN).memory
    weights = 4 * (2 * IN * OUT + IN + OUT)

    assert held.parameter_bytes == held.gradient_bytes == weights
    assert held.optimizer_state_bytes == 2 * weights
    assert held.activation_bytes == pytest.approx(4 * B * OUT, abs=SMALL)


def test_gradients_that_are_dropped_before_the_step_ends_count():
    module = nn.Linear(IN, OUT)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def run():
        module(torch.empty(B, IN)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    assert trace_step(run, [module], IN).memory.gradient_bytes == WEIGHTS


def test_checkpointed_activations_are_not_saved():
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, *, again):
            super().__init__()
            self.again = again
            self.body = nn.Sequential(nn.Linear(IN, 9 * IN), nn.Tanh(), nn.Linear(9 * IN, IN))

        def forward(self, x):
            x = x * 2
            again = self.again
            return checkpoint(self.body, x, use_reentrant=False) if again else self.body(x)

    plain, again = (memory(Block(again=a), torch.empty(B, IN)) for a in (False, True))

    assert again.activation_bytes < plain.activation_bytes / 5


def test_parameters_that_no_loss_reaches_have_no_optimizer_state():
    class HalfUsed(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(IN, OUT), nn.Linear(1000, 1000)

        def forward(self, x):
            return self.used(x)

    held = memory(HalfUsed(), torch.empty(B, IN), optimizer="adam")

    assert held.gradient_bytes == WEIGHTS
    assert held.optimizer_state_bytes == 2 * WEIGHTS
    assert held.batch_bytes == 4 * B * IN


def test_a_negative_number_of_bytes_is_refused():
    with pytest.raises(GraphError, match="gradient_bytes=-1, must be >= 0"):
        MemoryEstimate(1, -1, 0, 0, 0, 0)


def test_memory_is_part_of_a_graphs_digest():
    x = torch.empty(B, IN)
    buffer = nn.Linear(IN, OUT)
    buffer.register_buffer("unused", torch.empty(7))

    assert trace_module(buffer, [x]).digest != trace_module(nn.Linear(IN, OUT), [x]).digest
