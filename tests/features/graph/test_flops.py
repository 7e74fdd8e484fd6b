"""FLOPs of every class of operator, forward and backward, against counts by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from presage.features.from_torch.fused import fused_kernels
from presage.features.from_torch.graph import trace_module, trace_step
from presage.features.graph.roofline import MATRIX_KINDS
from presage.pipelines.profiling.zoo import FAMILIES, all_configs, build

B = 6


@pytest.fixture(autouse=True)
def _on_meta():
    with torch.device("meta"):
        yield


class Calls(nn.Module):
    """Module that calls a function of weights of these shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(*shape)) for shape in shapes)

    def forward(self, *inputs):
        return self.function(*inputs, *self.weights)


def flops(graph, kind, phase):
    return sum(n.flops * n.count for n in graph.nodes if (n.kind, n.phase) == (kind, phase))


def count(graph, kind, phase):
    return sum(n.count for n in graph.nodes if (n.kind, n.phase) == (kind, phase))


def traced(function, *shapes, data=()):
    return trace_module(Calls(function, *shapes), data)


# Products: every multiply-add is two. Where both factors learn, the backward pass has two more.


@pytest.mark.parametrize(
    ("function", "shapes", "multiply_adds"),
    [
        (torch.mm, [(2, 3), (3, 5)], 2 * 3 * 5),
        (torch.matmul, [(7, 2, 3), (3, 5)], 7 * 2 * 3 * 5),
        (torch.matmul, [(7, 1, 2, 3), (4, 3, 5)], 7 * 4 * 2 * 3 * 5),
        (torch.bmm, [(7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (torch.baddbmm, [(7, 2, 5), (7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (torch.addbmm, [(2, 5), (7, 2, 3), (7, 3, 5)], 7 * 2 * 3 * 5),
        (torch.addmm, [(5,), (2, 3), (3, 5)], 2 * 3 * 5),
        (lambda a, b: torch.einsum("bij,bkj->bik", a, b), [(7, 2, 3), (7, 5, 3)], 7 * 2 * 3 * 5),
        (lambda a, b: torch.tensordot(a, b, dims=2), [(2, 3, 4), (3, 4, 5)], 2 * 3 * 4 * 5),
    ],
)
def test_a_product_and_its_two_gradients(function, shapes, multiply_adds):
    graph = traced(function, *shapes)

    assert flops(graph, "MatMul", "forward") == 2 * multiply_adds
    assert flops(graph, "MatMul", "backward") == 4 * multiply_adds


def test_products_with_vectors_have_gradients_that_only_scale():
    by_vector, dot = traced(torch.mv, (2, 3), (3,)), traced(torch.dot, (9,), (9,))

    assert [flops(by_vector, "MatMul", p) for p in ("forward", "backward")] == [12, 12]
    assert [flops(dot, "MatMul", p) for p in ("forward", "backward")] == [18, 0]


# Convolutions: a multiply-add of every kernel element with every place it is laid on.


@pytest.mark.parametrize(
    ("layer", "size", "multiply_adds"),
    [
        (lambda: nn.Conv1d(4, 6, 3), (9,), 7 * 6 * 4 * 3),
        (lambda: nn.Conv2d(4, 6, 1), (5, 5), 25 * 6 * 4),
        (lambda: nn.Conv2d(4, 6, 3, padding=1), (5, 5), 25 * 6 * 4 * 9),
        (lambda: nn.Conv2d(4, 6, 3, stride=2), (9, 9), 16 * 6 * 4 * 9),
        (lambda: nn.Conv2d(4, 6, 3, dilation=2), (9, 9), 25 * 6 * 4 * 9),
        (lambda: nn.Conv2d(4, 6, 3, groups=2), (5, 5), 9 * 6 * 2 * 9),
        (lambda: nn.Conv2d(4, 4, 3, groups=4), (5, 5), 9 * 4 * 1 * 9),
        (lambda: nn.Conv3d(4, 6, (1, 2, 3)), (3, 3, 3), 3 * 2 * 1 * 6 * 4 * 6),
        (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), (5,), 5 * 4 * 6 * 3),
        (lambda: nn.ConvTranspose2d(4, 6, 3), (5, 5), 25 * 4 * 6 * 9),
        (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), (5, 5), 25 * 4 * 3 * 9),
        (lambda: nn.ConvTranspose3d(4, 6, 2), (3, 3, 3), 27 * 4 * 6 * 8),
    ],
)
def test_a_convolution_and_its_two_gradients(layer, size, multiply_adds):
    images = torch.empty(B, 4, *size)
    first = trace_module(layer(), [images])
    inner = trace_module(layer(), [images.requires_grad_()])
    is_pointwise, groups = math.prod(layer().kernel_size) == 1, layer().groups
    grouped = {1: "Conv2D", 2: "GroupedConv2D", 4: "DepthwiseConv2D"}[groups]
    kind = "PointwiseConv2D" if is_pointwise else grouped

    assert flops(first, kind, "forward") == 2 * B * multiply_adds
    assert flops(first, kind, "backward") == 2 * B * multiply_adds  # only of the weight
    assert flops(inner, kind, "backward") == 4 * B * multiply_adds


# Attention: two products forward, five backward, and no scores in memory.

HEADS, LENGTH, KEYS, WIDTH = 4, 64, 96, 8
SHAPES = [(B, HEADS, LENGTH, WIDTH), (B, HEADS, KEYS, WIDTH), (B, HEADS, KEYS, WIDTH)]


def attention(**options):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def masked(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.empty(LENGTH, KEYS) > 0)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (attention(), SHAPES),
        (attention(is_causal=True), SHAPES),
        (attention(dropout_p=0.1), SHAPES),
        (attention(scale=0.5), SHAPES),
        (masked, SHAPES),
        (attention(), [s[1:] for s in SHAPES]),
        (attention(), [(1, *s) for s in SHAPES]),
        (attention(), [SHAPES[0], (1, *SHAPES[1][1:]), (B, 1, KEYS, WIDTH)]),
        (attention(enable_gqa=True), [SHAPES[0], *[(B, 2, KEYS, WIDTH)] * 2]),
    ],
)
def test_attention_is_one_operator_forward_and_one_backward(function, shapes):
    graph = traced(function, *shapes)
    product = 2 * math.prod(shapes[0]) * KEYS

    assert count(graph, "Attention", "forward") == count(graph, "Attention", "backward") == 1
    assert flops(graph, "Attention", "forward") == 2 * product
    assert flops(graph, "Attention", "backward") == 5 * product
    assert not {"Softmax", "MatMul"} & {n.kind for n in graph.nodes}


def test_attention_with_a_mask_for_groups_of_heads_and_values_of_another_width():
    def function(q, k, v):
        mask = torch.empty(LENGTH, KEYS)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    graph = traced(function, SHAPES[0], (B, 2, KEYS, WIDTH), (B, 2, KEYS, 3))
    pairs = B * HEADS * LENGTH * KEYS

    assert flops(graph, "Attention", "forward") == 2 * pairs * (WIDTH + 3)
    assert flops(graph, "Attention", "backward") == pairs * (6 * WIDTH + 4 * 3)


@pytest.mark.parametrize("function", [attention(), masked])
def test_attention_does_not_store_its_scores(function):
    long = [(1, 1, 4096, WIDTH)] * 3
    mask_bytes = 0 if function is not masked else LENGTH * KEYS
    graph = traced(function, *(SHAPES if function is masked else long))
    tensors = graph.memory.parameter_bytes

    assert graph.memory.activation_bytes <= tensors + 5 * mask_bytes
    assert max(n.bytes_moved for n in graph.nodes) < 6 * tensors


def test_attention_of_half_precision_without_gradients():
    q = torch.empty(SHAPES[1], dtype=torch.float16)
    graph = trace_module(Calls(attention()), [q, q, q], training=False)
    (node,) = graph.nodes

    assert (node.kind, node.phase) == ("Attention", "forward")
    assert node.bytes_moved == pytest.approx(4 * 2 * q.numel(), rel=0.1)


def test_decomposed_attention_is_counted_by_its_operators():
    def function(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / WIDTH, -1) @ v

    graph = traced(function, *SHAPES)
    scores = B * HEADS * LENGTH * KEYS

    assert flops(graph, "MatMul", "forward") == 4 * scores * WIDTH
    assert flops(graph, "MatMul", "backward") == 8 * scores * WIDTH
    assert flops(graph, "Softmax", "forward") == 5 * scores


def test_attention_with_incompatible_shapes_is_rejected_by_torch():
    with pytest.raises(Exception, match=r"tracing failed .*ONNX"):
        traced(attention(), (2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 4, 6))


# Recurrent layers: every step multiplies every sample by both matrices of every direction.

LAYER_GATES = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
STEPS, INPUT, HIDDEN = 10, 12, 20


def recurrent(module, *, batch_first=False):
    shape = (B, STEPS, INPUT) if batch_first else (STEPS, B, INPUT)
    return trace_module(module, [torch.empty(*shape)])


@pytest.mark.parametrize("kind", LAYER_GATES)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_recurrent_layer(kind, batch_first, bias):
    graph = recurrent(kind(INPUT, HIDDEN, bias=bias, batch_first=batch_first))
    forward = 2 * B * STEPS * LAYER_GATES[kind] * HIDDEN * (INPUT + HIDDEN)

    assert count(graph, "Recurrent", "forward") == count(graph, "Recurrent", "backward") == 1
    assert flops(graph, "Recurrent", "forward") == forward
    assert flops(graph, "Recurrent", "backward") == 2 * forward
    assert graph.unknown_ops == {}


@pytest.mark.parametrize("kind", LAYER_GATES)
def test_recurrent_layers_of_two_directions(kind):
    graph = recurrent(kind(INPUT, HIDDEN, num_layers=3, bidirectional=True, dropout=0.2))
    matrices = (INPUT + HIDDEN) + 2 * (2 * HIDDEN + HIDDEN)  # later layers read both directions
    forward = 2 * B * STEPS * LAYER_GATES[kind] * HIDDEN * 2 * matrices

    assert count(graph, "Recurrent", "forward") == 3
    assert flops(graph, "Recurrent", "forward") == forward
    assert flops(graph, "Recurrent", "backward") == 2 * forward


def test_a_recurrent_layer_has_the_same_outputs_as_in_torch():
    module = nn.LSTM(INPUT, HIDDEN, 2, batch_first=True, bidirectional=True)
    data = torch.empty(B, STEPS, INPUT)
    with fused_kernels():
        fused = module(data)
    plain = module(data)

    assert fused[0].shape == plain[0].shape
    assert [s.shape for s in fused[1]] == [s.shape for s in plain[1]]


def test_the_gradients_of_a_recurrent_layer_reach_every_parameter_and_state():
    module = nn.GRU(INPUT, HIDDEN, 2)
    state = torch.empty(2, B, HIDDEN, requires_grad=True)
    with fused_kernels():
        _, last = module(torch.empty(STEPS, B, INPUT), state)
        last.sum().backward()

    assert state.grad is not None
    assert all(p.grad is not None and p.grad.shape == p.shape for p in module.parameters())


def test_a_recurrent_layer_saves_its_gates_for_the_backward_pass():
    graph = recurrent(nn.LSTM(INPUT, HIDDEN))
    steps_bytes = 4 * B * STEPS * HIDDEN
    states_bytes = 2 * 4 * B * HIDDEN  # at the start; those at the end are not read again

    kept = 5 * steps_bytes + steps_bytes + states_bytes  # gates and cells, outputs
    assert graph.memory.activation_bytes == pytest.approx(kept, abs=64)  # losses


def test_layers_without_a_fused_kernel_are_decomposed():
    projected = recurrent(nn.LSTM(INPUT, HIDDEN, proj_size=5))
    per_step = 4 * HIDDEN * (INPUT + 5) + HIDDEN * 5

    assert count(projected, "Recurrent", "forward") == 0
    assert flops(projected, "MatMul", "forward") == 2 * B * STEPS * per_step


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_a_cell_is_two_products(cell, gates):
    graph = trace_module(cell(INPUT, HIDDEN), [torch.empty(B, INPUT)])

    assert flops(graph, "MatMul", "forward") == 2 * B * gates * HIDDEN * (INPUT + HIDDEN)
    assert graph.unknown_ops == {}


# What is bound by memory: a few FLOPs per element.

ELEMENTS = B * 8 * 5 * 5


@pytest.mark.parametrize(
    ("layer", "kind", "per_element"),
    [
        (lambda: nn.BatchNorm2d(8), "Normalization", 8),
        (lambda: nn.GroupNorm(2, 8), "Normalization", 8),
        (lambda: nn.LayerNorm([8, 5, 5]), "Normalization", 8),
        (nn.ReLU, "Relu", 1),
        (nn.GELU, "Elementwise", 1),
        (nn.Tanh, "Elementwise", 1),
        (lambda: nn.Softmax(1), "Softmax", 5),
    ],
)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_elementwise_operators_take_a_few_flops_per_element(layer, kind, per_element, phase):
    graph = trace_module(layer(), [torch.empty(B, 8, 5, 5, requires_grad=True)])

    assert flops(graph, kind, phase) == per_element * ELEMENTS


def test_sums_and_products_of_elements():
    graph = traced(lambda a, b: a * b + a, (B, 9), (B, 9))

    assert flops(graph, "Mul", "forward") == flops(graph, "AddV2", "forward") == B * 9
    assert flops(graph, "Mul", "backward") == 2 * B * 9  # one for each factor
    assert flops(graph, "AddV2", "backward") == B * 9  # a is read twice


def test_an_embedding_reads_rows_and_computes_nothing():
    graph = trace_module(nn.Embedding(1000, 16), [torch.empty(B, 7, dtype=torch.long)])
    (forward,) = [n for n in graph.nodes if (n.kind, n.phase) == ("Embedding", "forward")]
    (backward,) = [n for n in graph.nodes if (n.kind, n.phase) == ("Embedding", "backward")]

    assert forward.flops == backward.flops == 0
    assert forward.bytes_moved == 2 * (4 * B * 7 * 16) + 8 * B * 7
    assert backward.output_elements == 1000 * 16  # its gradient is dense


@pytest.mark.parametrize(("optimizer", "operators"), [("sgd", 3), ("adam", 7), ("adamw", 8)])
def test_an_optimizer_reads_every_parameter(optimizer, operators):
    graph = trace_module(nn.Linear(40, 50, bias=False), [torch.empty(B, 40)], optimizer=optimizer)
    updates = [n for n in graph.nodes if n.phase == "optimizer" and n.flops >= 2000]

    assert sum(n.count for n in updates) == operators
    assert sum(n.flops * n.count for n in updates) == operators * 2000


# Torch's own counter, on whole steps.


def convolution_gradients(grad, image, weight, *settings, out_shape=None):
    """Return FLOPs: each costs as much as the forward pass; torch omits groups in the weight's."""
    transposed, wanted = settings[4], settings[-1]
    places = image if transposed else grad
    return sum(wanted[:2]) * 2 * math.prod(places) * math.prod(weight[1:])


CORRECTED = {torch.ops.aten.convolution_backward: convolution_gradients}


def counted_by_torch(run, mapping):
    """Return torch's count; attention is fused in both, a fused recurrent layer in neither."""
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with fused_kernels(), counter:
        run()
    return counter.get_total_flops()


def matrix_flops(graph):
    return sum(n.flops * n.count for n in graph.nodes if n.kind in MATRIX_KINDS - {"Recurrent"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_every_family_has_the_flops_that_torch_counts(family):
    config = next(c for c in all_configs() if c.family == family)
    step = build(config)
    graph = trace_step(step.run, step.modules, step.input_elements)
    grouped = any(getattr(m, "groups", 1) > 1 for net in step.modules for m in net.modules())

    assert matrix_flops(graph) == counted_by_torch(step.run, CORRECTED if grouped else {})


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(3, 8, 5, stride=2, padding=2, dilation=1)
        self.deep = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, stride=2, padding=1))
        self.up = nn.ConvTranspose2d(16, 3, 2, stride=2)

    def forward(self, x):
        return self.up(torch.cat([self.wide(x), self.deep(x)], 1)) + x


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (TwoBranches, (2, 3, 16, 16)),
        (lambda: nn.Conv3d(2, 4, 3, dilation=2), (2, 2, 7, 7, 7)),
        (lambda: nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), (2, 9, 32)),
        (lambda: nn.LSTM(12, 20, 2, proj_size=5), (7, 3, 12)),
        (lambda: nn.Bilinear(6, 7, 8), (4, 6)),
    ],
)
def test_other_modules_have_the_flops_that_torch_counts(module, shape):
    built, x = module(), torch.empty(*shape)
    inputs = [x, torch.empty(4, 7)] if isinstance(built, nn.Bilinear) else [x]

    def run():
        out = built(*inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    assert matrix_flops(trace_step(run, [built], 1)) == counted_by_torch(run, {})


def test_torch_counts_the_same_for_a_recurrent_layer_except_unneeded_gradients():
    module, data = nn.LSTM(INPUT, HIDDEN), torch.empty(STEPS, B, INPUT, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter:
        module(data)[0].sum().backward()
    graph = recurrent(module)
    ours = sum(flops(graph, "Recurrent", phase) for phase in ("forward", "backward"))

    # Taken apart, the state before the first step has no gradient; a fused kernel makes it.
    assert ours - counter.get_total_flops() == 2 * B * 4 * HIDDEN * HIDDEN
