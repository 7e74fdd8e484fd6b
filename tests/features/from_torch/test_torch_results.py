import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from presage.features.from_torch.results import ShapeCache

aten = torch.ops.aten


def meta(*shape, **options):
    return torch.empty(*shape, device="meta", **options)


class Counting(TorchDispatchMode):
    """Dispatch mode that counts calls of torch itself."""

    def __init__(self, op):
        super().__init__()
        self.op, self.calls = op, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is self.op
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.mm.default, lambda: (meta(3, 4), meta(4, 5))),
        (aten.add.Tensor, lambda: (meta(2, 3, 4, 5).permute(0, 2, 3, 1), meta(3))),
        (aten.native_layer_norm.default, lambda: (meta(6, 8), [8], meta(8), None, 1e-5)),
        (aten.cat.default, lambda: ([meta(2, 3), meta(4, 3)],)),
    ],
)
def test_equal_arguments_have_the_same_result_without_another_call(op, args):
    results, expected = ShapeCache(), op(*args())

    with Counting(op) as torch_was:
        first, again = (results.call(op, args(), {}) for _ in range(2))

    for made in (first, again):
        for ours, theirs in zip(
            made if isinstance(made, tuple) else [made],
            expected if isinstance(expected, tuple) else [expected],
            strict=True,
        ):
            assert (ours.shape, ours.stride(), ours.dtype) == (
                theirs.shape, theirs.stride(), theirs.dtype
            )  # fmt: skip
    assert torch_was.calls == 1


def test_a_different_shape_layout_type_or_number_is_another_call():
    results, x = ShapeCache(), meta(4, 6)
    results.call(aten.add.Tensor, (x, 1), {})

    assert results.call(aten.add.Tensor, (meta(6, 4), 1), {}).shape == (6, 4)
    assert results.call(aten.add.Tensor, (meta(6, 4).t(), 1), {}).stride() == (1, 4)
    assert results.call(aten.add.Tensor, (x.to(torch.int64), 1), {}).dtype == torch.int64
    assert results.call(aten.add.Tensor, (x.to(torch.int64), 1.0), {}).dtype == torch.float32


def test_operators_that_alias_write_or_read_values_are_never_cached():
    results, x = ShapeCache(), meta(4, 6)

    for _ in range(2):
        view = results.call(aten._unsafe_view.default, (x, [24]), {})
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert results.call(aten.mul_.Tensor, (x, 2), {}) is x
        assert results.call(aten.add.Tensor, (torch.ones(2), 1), {}).tolist() == [2, 2]
