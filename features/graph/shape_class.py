"""Shape classes: what of an operator's shape decides how near its kernel comes to the roofline.

A library has a fast kernel for a product whose channels fill the multiplier's tiles; for a grouped
convolution of few channels, or a depthwise one of a large window, it has another kernel or none.
Statistics keep such operators apart. The shape is read off the forward pass, where FLOPs tell the
length of the sum behind an output; a gradient is of the class of what it is the gradient of.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from presage.features.graph.op_graph import OpNode

WINDOW = 9  # points of a 3 x 3 kernel: what a convolution is taken for, since its own is not told
MORE = "more"
# Of convolutions by groups: the longest sum of each class. By channels of a group, or by points of
# the kernel where a group is one channel.
BY_SUM: Mapping[str, Mapping[str, float]] = {
    "GroupedConv2D": {"6 channels": 60, "13 channels": 120, "27 channels": 250, "55 channels": 500},
    "DepthwiseConv2D": {"9 points": 9, "25 points": 25, "49 points": 49},
}
# Of products: channels, in or out, that are no multiple of 8, few, or no multiple of 32.
MISFITS = ("odd 8", "narrow", "odd 32")
NARROW = 32
PRODUCTS = ("MatMul", "Conv2D", "PointwiseConv2D")
SHAPES: Mapping[str, tuple[str, ...]] = {
    **{kind: (*longest, MORE) for kind, longest in BY_SUM.items()},
    **dict.fromkeys(PRODUCTS, MISFITS),
}


def shapes_of(nodes: Sequence[OpNode]) -> list[str]:
    """Class of each operator of a graph, one of its kind's ``SHAPES``; "" if of none or unknown."""
    forward: dict[tuple[str, int, int], str] = {}
    for node in nodes:
        if node.phase == "forward" and node.kind in SHAPES:
            key = (node.kind, node.flops, node.input_elements + node.output_elements)
            # Of operators that look alike, whichever comes first, it is the same one.
            forward[key] = max(_of_forward(node), forward.get(key, ""))
    return [_of_forward(n) if n.phase == "forward" else _of_gradient(n, forward) for n in nodes]


def class_of_sum(kind: str, length: float) -> str:
    """Class of a convolution by groups, by the length of the sum behind one output."""
    longest = list(BY_SUM[kind].values())
    return SHAPES[kind][bisect_left(longest, length)]


def _of_forward(node: OpNode) -> str:
    if node.kind not in SHAPES or not node.output_elements:
        return ""
    length = node.flops // (2 * node.output_elements)
    if node.kind in BY_SUM:
        return class_of_sum(node.kind, length)
    if not node.parameters or not length:
        return ""  # both factors are data
    window = WINDOW if node.kind == "Conv2D" else 1
    return _misfit(length, window, node.parameters // length)


def _of_gradient(node: OpNode, forward: Mapping[tuple[str, int, int], str]) -> str:
    """It has the forward operator's FLOPs, and reads its data and its result, or writes the one."""
    for elements in (node.input_elements, node.input_elements + node.output_elements):
        shape = forward.get((node.kind, node.flops, elements), "")
        if shape:
            return shape
    return ""


def _misfit(length: int, window: int, channels_out: int) -> str:
    """A window that does not divide the sum is not 3 x 3: it has no fast kernel either."""
    if length % (8 * window) or channels_out % 8:
        return "odd 8"
    if min(length // window, channels_out) <= NARROW:
        return "narrow"
    if length % (32 * window) or channels_out % 32:
        return "odd 32"
    return ""
