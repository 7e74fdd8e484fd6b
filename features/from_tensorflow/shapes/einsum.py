"""Shape and cost of TensorFlow's Einsum."""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]


def einsum_shape(equation: str, operands: Sequence[Shape]) -> Shape | None:
    """Return the shape of the result; None if equation and operands are inconsistent."""
    sizes = _sizes(equation, operands)
    output = equation.replace(" ", "").partition("->")[2]
    if sizes is None:
        return None
    before, dots, after = output.partition("...")
    hidden = [f".{i}" for i in range(sum(1 for n in sizes if n[0] == "."))][::-1] if dots else []
    labels = [*before, *hidden, *after]
    return tuple(sizes[n] for n in labels) if all(n in sizes for n in labels) else None


def einsum_flops(equation: str, operands: Sequence[Shape]) -> int | None:
    """Count a multiply-add per combination of indices; with one operand, an addition each.

    With three or more operands the order of contraction, hence the cost, is unknown: None.
    """
    sizes = _sizes(equation, operands)
    if sizes is None or len(operands) > 2:
        return None
    return len(operands) * math.prod(sizes.values())


def _sizes(equation: str, operands: Sequence[Shape]) -> dict[str, int] | None:
    """Return the size of each index; the indices of "..." are ".0", ".1" from the right."""
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(operands):
        return None
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, operands, strict=True):
        before, dots, after = term.partition("...")
        hidden = len(shape) - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            return None
        labels = [*before, *(f".{i}" for i in reversed(range(hidden))), *after]
        for label, size in zip(labels, shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))  # a broadcast dimension is 1
    return sizes
