"""Shape classes: groups of operator shapes whose kernels reach a similar part of the roofline.

A library has a fast kernel for a product whose channels fill the multiplier's tiles. For a grouped
convolution with few channels, or a depthwise one with a large window, it has another kernel or
none. Statistics keep such operators apart. The shape is derived from the forward pass, where FLOPs
determine the length of the sum behind an output; a gradient has its forward operator's class.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from presage.features.graph.op_graph import OpNode

WINDOW = 9  # points of a 3 x 3 kernel: assumed, because the kernel size is unknown
MORE = "more"
# For grouped convolutions: the longest sum of each class. Classes are named by channels per group,
# or by points of the kernel where a group is one channel.
SUM_LENGTH_CLASSES: Mapping[str, Mapping[str, float]] = {
    "GroupedConv2D": {"6 channels": 60, "13 channels": 120, "27 channels": 250, "55 channels": 500},
    "DepthwiseConv2D": {"9 points": 9, "25 points": 25, "49 points": 49},
}
# For products: channels, in or out, not a multiple of 8, few, or not a multiple of 32.
MISFITS = ("odd 8", "narrow", "odd 32")
NARROW = 32
PRODUCTS = ("MatMul", "Conv2D", "PointwiseConv2D")
SHAPES: Mapping[str, tuple[str, ...]] = {
    **{kind: (*longest, MORE) for kind, longest in SUM_LENGTH_CLASSES.items()},
    **dict.fromkeys(PRODUCTS, MISFITS),
}


def classify_shapes(nodes: Sequence[OpNode]) -> list[str]:
    """Return the shape class of each operator of a graph; "" without one or if it is unknown."""
    forward: dict[tuple[str, int, int], str] = {}
    for node in nodes:
        if node.phase == "forward" and node.kind in SHAPES:
            key = (node.kind, node.flops, node.input_elements + node.output_elements)
            # The result must not depend on the order of operators with equal keys.
            forward[key] = max(_classify_forward(node), forward.get(key, ""))
    return [
        _classify_forward(n) if n.phase == "forward" else _classify_gradient(n, forward)
        for n in nodes
    ]


def classify_by_sum(kind: str, length: float) -> str:
    """Return the class of a grouped convolution by the length of the sum behind one output."""
    longest = list(SUM_LENGTH_CLASSES[kind].values())
    return SHAPES[kind][bisect_left(longest, length)]


def _classify_forward(node: OpNode) -> str:
    if node.kind not in SHAPES or not node.output_elements:
        return ""
    length = node.flops // (2 * node.output_elements)
    if node.kind in SUM_LENGTH_CLASSES:
        return classify_by_sum(node.kind, length)
    if not node.parameters or not length:
        return ""  # both factors are activations
    window = WINDOW if node.kind == "Conv2D" else 1
    return _misfit(length, window, node.parameters // length)


def _classify_gradient(node: OpNode, forward: Mapping[tuple[str, int, int], str]) -> str:
    """Match by FLOPs and elements: a gradient reads data and result, or writes one of them."""
    for elements in (node.input_elements, node.input_elements + node.output_elements):
        shape = forward.get((node.kind, node.flops, elements), "")
        if shape:
            return shape
    return ""


def _misfit(length: int, window: int, channels_out: int) -> str:
    """Return the misfit of a product; a window that does not divide the sum is not 3 x 3."""
    if length % (8 * window) or channels_out % 8:
        return "odd 8"
    if min(length // window, channels_out) <= NARROW:
        return "narrow"
    if length % (32 * window) or channels_out % 32:
        return "odd 32"
    return ""
