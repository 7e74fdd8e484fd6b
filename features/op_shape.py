"""Shape classes: what of an operator's shape decides how near its kernel comes to the roofline.

A library has a fast kernel for a product whose channels fill the multiplier's tiles, and another
kernel, or none, for a grouped or depthwise convolution of few channels or of a large window.
Statistics keep such operators apart. The shape is read off the forward pass, where the FLOPs tell
the length of the sum behind an output; a gradient's follow from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from presage.features.graph import OpNode

WINDOW = 9  # points of a 3 x 3 kernel: what a convolution is taken for whose kernel is not told
MORE = "more"
# Of the sums that a convolution by groups makes: the longest of each class, and its name. By
# channels of a group, or by points of the kernel where a group is one channel.
BY_SUM: Mapping[str, Mapping[str, int]] = {
    "GroupedConv2D": {f"{n} channels": n * WINDOW for n in (2, 5, 9, 14, 20, 28, 38, 50, 69)},
    "DepthwiseConv2D": {f"{n} points": n for n in (9, 25, 49)},
}
_PRODUCTS = ("MatMul", "Conv2D", "PointwiseConv2D")
ALIGNMENTS = ("odd 8", "narrow", "odd 32")
NARROW = 32  # channels: a tile of a tensor core's product is wider
SHAPES: Mapping[str, tuple[str, ...]] = {
    **{kind: (*sums, MORE) for kind, sums in BY_SUM.items()},
    **dict.fromkeys(_PRODUCTS, ALIGNMENTS),
}


def shape_of(node: OpNode) -> str:
    """Class of a forward operator, one of its kind's ``SHAPES``; "" if unknown or of no matter."""
    if node.phase != "forward" or node.kind not in SHAPES or not node.output_elements:
        return ""
    length = node.flops // (2 * node.output_elements)
    if node.kind in BY_SUM:
        return class_of_sum(node.kind, length)
    if not node.parameters or not length:
        return ""  # both factors are data
    window = WINDOW if node.kind == "Conv2D" else 1
    return _alignment(length, window, node.parameters // length)


def class_of_sum(kind: str, length: float) -> str:
    """Class of a convolution by groups, by the length of the sum behind one output."""
    names, bounds = zip(*BY_SUM[kind].items(), strict=True)
    return (*names, MORE)[bisect_left(bounds, length)]


def _alignment(length: int, window: int, channels_out: int) -> str:
    """Of a product: whether its channels, in and out, are multiples of 8, more than few, of 32."""
    if length % (8 * window) or channels_out % 8:
        return "odd 8"
    if min(length // window, channels_out) <= NARROW:
        return "narrow"
    if length % (32 * window) or channels_out % 32:
        return "odd 32"
    return ""
