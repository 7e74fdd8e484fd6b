from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from presage.errors import GraphError
from presage.features.from_torch.graph import trace_module, trace_step


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

    # Forward once; backward only the gradient of the weight, since the input needs none.
    assert flops(graph, "MatMul", "forward") == 2 * 8 * 20 * 30
    assert flops(graph, "MatMul", "backward") == 2 * 8 * 20 * 30
    assert graph.parameters == 20 * 30 + 30
    assert graph.input_elements == 20


def test_f1_bias_and_its_gradient_are_separate_operators():
    graph = trace(nn.Linear(20, 30), torch.empty(8, 20))
    sizes = {n.kind: n.input_elements for n in graph.nodes}

    assert sizes["BiasAdd"] == sizes["BiasAddGrad"] == 8 * 30


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


def test_nothing_is_allocated_for_a_model_that_would_not_fit():
    graph = trace(nn.Linear(200_000, 200_000), torch.empty(1, 200_000), optimizer="sgd")

    assert graph.parameters == 200_000**2 + 200_000
    assert graph.peak_live_bytes > 300e9


class DecoderBlock(nn.Module):
    def __init__(self, width, heads, mlp):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = (nn.Linear(width, n * width, bias=False) for n in (3, 1))
        self.gate, self.up = (nn.Linear(width, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(self, x):  # (B, T, W)
        shape = (*x.shape[:2], 3, self.heads, -1)
        q, k, v = self.qkv(self.norms[0](x)).reshape(shape).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def test_seven_billion_parameters():
    width, depth, heads, mlp, vocabulary, tokens = 4096, 32, 32, 11008, 32000, 2048
    decoder = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *(DecoderBlock(width, heads, mlp) for _ in range(depth)),
        nn.RMSNorm(width),
        nn.Linear(width, vocabulary, bias=False),
    )
    words = torch.empty(1, tokens, dtype=torch.long)
    graph = trace(decoder, words, optimizer="adamw")
    matrices = depth * (4 * width**2 + 3 * width * mlp) + width * vocabulary

    assert graph.parameters == matrices + width * vocabulary + (2 * depth + 1) * width
    assert flops(graph, "MatMul") == 6 * tokens * matrices
    assert flops(graph, "Attention") == depth * (4 + 10) * tokens**2 * width
    assert graph.memory.optimizer_state_bytes == 2 * 4 * graph.parameters
    assert graph.unknown_ops == {}
    assert len(graph.nodes) < 150  # equal blocks are one row each


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


def test_equal_models_have_equal_digests_that_depend_on_the_batch():
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


def test_a_step_that_reads_values_is_rejected_with_the_reason():
    def step():
        if torch.ones(1).item() > 0:
            raise AssertionError

    with pytest.raises(GraphError, match=r"tracing failed in 'aten._local_scalar_dense.*ONNX"):
        trace_step(step, [nn.Linear(1, 1)], input_elements=1)


def test_the_error_of_weights_without_shape_or_storage_suggests_onnx():
    sparse = nn.Module()
    sparse.register_buffer("table", torch.eye(2, device="cpu").to_sparse())
    for module in (nn.LazyLinear(3), sparse):
        with pytest.raises(GraphError, match=r"tracing failed before the first operator: .*ONNX"):
            trace_step(lambda: None, [module], input_elements=1)


@pytest.mark.parametrize(
    ("forward", "op"),
    [
        (lambda x: x[x > 0], "index"),
        (torch.nonzero, "nonzero"),
        (lambda x: x * x.max().item(), "_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense|is_nonzero"),
        (torch.unique, "unique"),
        (lambda x: x @ x, "mm"),
    ],
)
def test_the_error_of_a_value_dependent_operator_names_it(forward, op):
    class Dependent(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 5)

        def forward(self, x):
            return forward(self.layer(x))

    with pytest.raises(GraphError, match=rf"failed (in|after) '.*({op}).*': .*ONNX") as error:
        trace(Dependent(), torch.empty(3, 4))
    assert "\n" not in str(error.value)
    assert ("depends on values" in str(error.value)) == (op != "mm")


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


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_a_graph_does_not_depend_on_the_default_device(optimizer):
    module, data = TwoLayers(), torch.empty(8, 16)
    with torch.device("cpu"):
        outside = trace(module, data, optimizer=optimizer)

    assert outside == trace(module, data, optimizer=optimizer)


def test_a_failing_optimizer_leaves_the_default_device_unchanged():
    module = TwoLayers()
    broken = torch.optim.Adam(module.parameters(), maximize=True)
    broken.param_groups[0]["betas"] = None

    def step():
        module(torch.empty(8, 16)).sum().backward()
        broken.step()

    with pytest.raises(GraphError):
        trace_step(step, [module], 16)
    assert torch.empty(1).is_meta
