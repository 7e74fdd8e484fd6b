"""Half precision on the meta device, against CUDA's documented autocast and the CPU's."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from presage.errors import GraphError
from presage.features.from_torch.autocast import AUTOCAST_DTYPES, meta_autocast
from presage.features.from_torch.graph import trace_module
from presage.pipelines.profiling.zoo.precision import apply_precision

B, IN, OUT = 32, 40, 50


@pytest.fixture(autouse=True)
def _on_meta():
    with torch.device("meta"):
        yield


def flops(graph, kind):
    return sum(n.flops * n.count for n in graph.nodes if n.kind == kind)


def nodes(graph, op, phase="forward"):
    return [n for n in graph.nodes if n.op == op and n.phase == phase]


@pytest.mark.parametrize("precision", AUTOCAST_DTYPES)
def test_a_product_is_in_half_precision_and_its_casts_are_recorded(precision):
    layer, data = nn.Linear(IN, OUT, bias=False), torch.empty(B, IN)
    graph = trace_module(layer, [data], precision=precision)
    (product,) = nodes(graph, "aten.mm")
    casts = nodes(graph, "aten._to_copy")

    assert product.bytes_moved == 2 * (B * IN + IN * OUT + B * OUT)
    assert (product.parameters, product.input_elements) == (IN * OUT, B * IN)
    assert {n.output_elements for n in casts} >= {B * IN, IN * OUT}
    assert flops(graph, "MatMul") == flops(trace_module(layer, [data]), "MatMul")


def test_weights_gradients_and_states_stay_in_single_precision():
    half, single = (
        trace_module(nn.Linear(IN, OUT), [torch.empty(B, IN)], optimizer="adam", precision=p).memory
        for p in ("bf16", "fp32")
    )

    assert half.parameter_bytes == single.parameter_bytes
    assert half.gradient_bytes == single.gradient_bytes
    assert half.optimizer_state_bytes == single.optimizer_state_bytes


def test_activations_take_half_the_bytes_and_half_precision_weights_are_saved():
    module = nn.Sequential(*[nn.Linear(IN, IN, bias=False), nn.Tanh()] * 4)
    half, single = (
        trace_module(module, [torch.empty(1000, IN)], precision=p).memory.activation_bytes
        for p in ("bf16", "fp32")
    )
    data, weight = 2 * 1000 * IN, 2 * IN * IN

    # The same layer four times: its weight is cast once. The input's own copy is kept too.
    assert half == pytest.approx(single // 2 + data + weight, abs=64)


def test_norms_losses_and_powers_are_in_single_precision():
    seen = {}

    def note(name, tensor):
        seen[name] = tensor.dtype
        return tensor

    x = nn.Parameter(torch.empty(4, 8, 6, 6))
    target = torch.empty(4, dtype=torch.long)
    with meta_autocast("bf16"):
        y = note("convolution", F.conv2d(x, torch.empty(8, 8, 1, 1)))
        note("batch norm", F.batch_norm(y, torch.empty(8), torch.empty(8), training=True))
        note("relu", F.relu(y))
        note("sum with single", y + x)
        note("layer norm", F.layer_norm(y, (6,)))
        note("group norm", F.group_norm(y, 2))
        note("softmax", F.softmax(y, -1))
        note("sum", y.sum())
        note("power", y.pow(2))
        note("loss", F.cross_entropy(y.mean((2, 3)), target))
        note("products", torch.einsum("bchw,bdhw->bcd", x, y))
        note("concatenation", torch.cat([x, y]))
        note("widest", torch.addcmul(x, y, y))
        note("no data", torch.nn.functional.embedding(target, torch.empty(9, 3)))
        note("double", (x.double() @ x.double()))
    half = {name for name, dtype in seen.items() if dtype == torch.bfloat16}

    assert half == {"convolution", "batch norm", "relu", "products"}
    assert seen["double"] == torch.float64
    assert F.conv2d(x, torch.empty(8, 8, 1, 1)).dtype == torch.float32  # outside


def test_the_dtypes_equal_those_of_cpu_autocast_where_the_lists_agree():
    def outputs(device):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5)
        )
        dtypes = []
        for layer in model:
            layer.register_forward_hook(lambda _m, _i, out: dtypes.append(out.dtype))
        apply_precision(model.to(device), "bf16")
        out = model(torch.empty(2, 3, 8, 8, device=device))
        out.sum().backward()
        return [
            *dtypes,
            out.dtype,
            {p.grad.dtype for p in model.parameters() if p.grad is not None},
        ]

    on_meta = outputs("meta")
    with torch.device("cpu"):
        assert outputs("cpu") == on_meta


def test_fused_operators_run_in_half_precision():
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    attention = trace_module(layer, [torch.empty(2, 9, 32)], precision="fp16")
    recurrent = trace_module(nn.LSTM(12, 20), [torch.empty(7, 3, 12)], precision="fp16")
    single = trace_module(nn.LSTM(12, 20), [torch.empty(7, 3, 12)])
    moved = [
        sum(n.bytes_moved for n in g.nodes if (n.kind, n.phase) == ("Recurrent", "forward"))
        for g in (recurrent, single)
    ]

    kinds = [n.kind for n in attention.nodes for _ in range(n.count)]
    assert kinds.count("Attention") == 2
    assert 2 * moved[0] == moved[1]
    assert attention.unknown_ops == recurrent.unknown_ops == {}


def test_a_module_with_half_precision_weights_is_unchanged():
    layer, data = nn.Linear(IN, OUT).half(), torch.empty(B, IN, dtype=torch.float16)
    plain, half = (trace_module(layer, [data], precision=p) for p in ("fp32", "fp16"))

    assert plain == half


def test_an_unknown_precision_is_refused():
    says = "autocast has no precision 'fp8'; use bf16 or"
    with pytest.raises(GraphError, match=says), meta_autocast("fp8"):
        pass
