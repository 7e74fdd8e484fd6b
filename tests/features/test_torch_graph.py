from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from presage.features.errors import GraphError
from presage.features.torch_graph import trace_module, trace_step


def trace(module, *inputs, **options):
    return trace_module(module, inputs, **options)


def flops(graph, kind, phase=None):
    return sum(
        n.flops * n.count for n in graph.nodes if n.kind == kind and phase in (None, n.phase)
    )


@pytest.fixture(autouse=True)
def _on_meta():
    with torch.device("meta"):
        yield


def test_a_linear_layer_by_hand():
    graph = trace(nn.Linear(20, 30), torch.empty(8, 20))

    # Forward once; backward the weight's gradient alone, since the input needs none.
    assert flops(graph, "MatMul", "forward") == 2 * 8 * 20 * 30
    assert flops(graph, "MatMul", "backward") == 2 * 8 * 20 * 30
    assert graph.parameters == 20 * 30 + 30
    assert graph.input_elements == 20


def test_f1_bias_and_its_gradient_are_operators_of_their_own():
    graph = trace(nn.Linear(20, 30), torch.empty(8, 20))
    sizes = {n.kind: n.input_elements for n in graph.nodes}

    assert sizes["BiasAdd"] == sizes["BiasAddGrad"] == 8 * 30


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_by_hand(groups):
    graph = trace(nn.Conv2d(8, 16, 3, padding=1, groups=groups), torch.empty(2, 8, 10, 10))

    assert flops(graph, "Conv2D", "forward") == 2 * (2 * 16 * 10 * 10) * (8 // groups) * 9


def test_both_gradients_of_a_grouped_convolution_cost_what_the_forward_pass_does():
    # By hand: torch's own counter forgets the groups in the weight's gradient.
    body = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8))
    graph = trace(body, torch.empty(2, 4, 10, 10))
    depthwise = 2 * (2 * 8 * 100) * 9
    pointwise = 2 * (2 * 8 * 100) * 4

    assert flops(graph, "Conv2D", "backward") == 2 * depthwise + pointwise


def test_a_transposed_convolution_by_hand():
    graph = trace(nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1), torch.empty(2, 8, 5, 5))

    assert flops(graph, "Conv2D", "forward") == 2 * (2 * 8 * 5 * 5) * 16 * 16


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3),
            nn.ConvTranspose2d(8, 4, 2), nn.Flatten(), nn.Linear(4 * 14 * 14, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (TwoLayers, (8, 16)),
        (Convolutions, (2, 3, 32, 32)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (2, 9, 32)),
        (lambda: nn.LSTM(12, 20, 2), (7, 3, 12)),
    ],
)
def test_flops_equal_torchs_own_counter(make, shape):
    module, x = make(), torch.empty(*shape)
    graph = trace(module, x)
    counter = FlopCounterMode(display=False)
    with counter:
        out = module(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
    counted = sum(flops(graph, kind) for kind in ("MatMul", "Conv2D", "Attention"))

    assert counted == counter.get_total_flops()


def test_nothing_is_allocated_for_a_model_that_would_not_fit():
    graph = trace(nn.Linear(200_000, 200_000), torch.empty(1, 200_000), optimizer="sgd")

    assert graph.parameters == 200_000**2 + 200_000
    assert graph.peak_live_bytes > 300e9


def test_the_optimizer_is_a_phase_and_adam_keeps_more_than_sgd():
    sgd, adam = (trace(TwoLayers(), torch.empty(8, 16), optimizer=o) for o in ("sgd", "adam"))

    assert {n.kind for n in sgd.nodes if n.phase == "optimizer"} == {"Update"}
    assert adam.peak_live_bytes > sgd.peak_live_bytes


def test_peak_live_bytes_hold_weights_gradients_and_adams_two_moments():
    graph = trace(nn.Linear(1000, 1000, bias=False), torch.empty(1, 1000), optimizer="adam")
    weight = 4 * 1000 * 1000

    assert 4 * weight <= graph.peak_live_bytes < 7 * weight


def test_inference_has_a_forward_pass_only():
    graph = trace(TwoLayers(), torch.empty(8, 16), training=False)

    assert {n.phase for n in graph.nodes} == {"forward"}


def test_equal_models_have_equal_digests_and_another_batch_another():
    first, again, other = (trace(TwoLayers(), torch.empty(b, 16)).digest for b in (8, 8, 9))

    assert first == again != other


def test_an_operator_outside_the_table_is_counted_as_other():
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.special.i0e(self.layer(x)) + torch.special.i0e(x)

    graph = trace(Rare(), torch.empty(3, 4))

    assert graph.unknown_ops["aten.special_i0e"] == 2


def test_no_operator_of_usual_layers_is_unknown():
    layer = nn.Sequential(
        nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(), nn.Softmax(-1), nn.Tanh()
    )

    assert trace(layer, torch.empty(4, 8)).unknown_ops == {}


def test_a_step_that_reads_values_cannot_be_traced_and_says_so():
    def step():
        if torch.ones(1).item() > 0:
            raise AssertionError

    with pytest.raises(GraphError, match=r"tracing failed after .*ONNX"):
        trace_step(step, [nn.Linear(1, 1)], input_elements=1)


def test_a_shape_error_in_the_users_model_names_the_operator():
    with pytest.raises(GraphError, match=r"addmm|mm"):
        trace(nn.Linear(3, 4), torch.empty(2, 5))


def test_a_model_without_operators_is_refused():
    with pytest.raises(GraphError, match="no operator"):
        trace(nn.Identity(), torch.empty(2, 5), training=False)


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(GraphError, match="sgd, adam, adamw"):
        trace(TwoLayers(), torch.empty(8, 16), optimizer="lion")


def test_bias_add_counts_once_per_layer():
    graph = trace(TwoLayers(), torch.empty(8, 16))
    counts = Counter({n.kind: 0 for n in graph.nodes})
    for n in graph.nodes:
        counts[n.kind] += n.count

    assert counts["BiasAdd"] == counts["BiasAddGrad"] == 2
