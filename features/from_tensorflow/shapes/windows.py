"""Shape rules of TensorFlow operators that slide a window over an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from presage.features.from_tensorflow.node import Node
from presage.features.from_tensorflow.value import Value

Shape = tuple[int, ...]
Rule = Callable[[Node, Sequence[Value]], Sequence[Shape] | None]


def channel_axis(node: Node, rank: int) -> int:
    """Return the axis of the channels: data formats are NHWC, NCHW, NDHWC, NCDHW."""
    return 1 if node.text("data_format").startswith("NC") else rank - 1


def _slide(node: Node, image: Shape, window: Sequence[int], channels: int) -> Shape:
    """Return the output shape of a window on an image.

    ``window`` has an extent per spatial axis, dilation included.
    """
    rank, channel = len(image), channel_axis(node, len(image))
    strides = node.integers("strides") or [1] * rank
    explicit = node.integers("explicit_paddings")
    padding = node.text("padding", "VALID")
    sizes = iter(window)
    shape = list(image)
    for axis in range(1, rank):
        if axis == channel:
            shape[axis] = channels
            continue
        extent, stride = next(sizes), strides[axis]
        if padding == "SAME":
            shape[axis] = -(-image[axis] // stride)
            continue
        before_after = explicit[2 * axis : 2 * axis + 2] if padding == "EXPLICIT" else []
        shape[axis] = (image[axis] + sum(before_after) - extent) // stride + 1
    return tuple(shape)


def _spatial(node: Node, per_axis: Sequence[int], rank: int) -> list[int]:
    channel = channel_axis(node, rank)
    return [per_axis[axis] for axis in range(1, rank) if axis != channel]


def _extent(node: Node, kernel: Sequence[int], rank: int) -> list[int]:
    """Return the extent of a kernel with the gaps of its dilation."""
    dilations = _spatial(node, node.integers("dilations") or [1] * rank, rank)
    return [(size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True)]


def _convolution(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    image, kernel = inputs[0].shape, inputs[1].shape
    window = _extent(node, kernel[:-2], len(image))
    return [_slide(node, image, window, kernel[-1])]


def _depthwise(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    image, kernel = inputs[0].shape, inputs[1].shape
    window = _extent(node, kernel[:-2], len(image))
    return [_slide(node, image, window, kernel[-2] * kernel[-1])]


def _pool(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    image = inputs[0].shape
    window = _spatial(node, node.integers("ksize"), len(image))
    pooled = _slide(node, image, window, image[channel_axis(node, len(image))])
    return [pooled, pooled] if node.op == "MaxPoolWithArgmax" else [pooled]


def _input_gradient(node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    """Return the given shape, complete or spatial; also for a transposed convolution."""
    sizes, kernel, gradient = inputs[0].integers(), inputs[1].shape, inputs[2].shape
    rank, channel = len(gradient), channel_axis(node, len(gradient))
    if sizes is None:
        return None
    if len(sizes) == rank:
        return [tuple(sizes)]
    shape = [gradient[0], *sizes]
    shape.insert(channel, kernel[-2])
    return [tuple(shape)] if len(shape) == rank else None


def shape_from_input(position: int) -> Rule:
    """Return a rule: the numbers of one input are the shape of the output."""

    def rule(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
        sizes = inputs[position].integers()
        return None if sizes is None else [tuple(sizes)]

    return rule


def _resize(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    sizes, image = inputs[1].integers(), inputs[0].shape
    return None if sizes is None else [(image[0], *sizes, image[3])]


def _space_to_batch(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    return _blocks(inputs, grow=False)


def _batch_to_space(_node: Node, inputs: Sequence[Value]) -> list[Shape] | None:
    return _blocks(inputs, grow=True)


def _blocks(inputs: Sequence[Value], *, grow: bool) -> list[Shape] | None:
    """Return the shape of the rewriting of a dilated convolution: every n-th pixel is an image."""
    image, block, margins = list(inputs[0].shape), inputs[1].integers(), inputs[2].integers()
    if block is None or margins is None:
        return None
    for axis, size in enumerate(block, start=1):
        margin = sum(margins[2 * axis - 2 : 2 * axis])
        if grow:
            image[0], image[axis] = image[0] // size, image[axis] * size - margin
        else:
            image[0], image[axis] = image[0] * size, (image[axis] + margin) // size
    return [tuple(image)]


def _depth(node: Node, inputs: Sequence[Value]) -> list[Shape]:
    """Return the shape of SpaceToDepth or DepthToSpace."""
    image, block = list(inputs[0].shape), node.integer("block_size", 1)
    channel = channel_axis(node, len(image))
    for axis in range(1, len(image)):
        inverse = (axis == channel) == (node.op == "DepthToSpace")
        factor = block * block if axis == channel else block
        image[axis] = image[axis] // factor if inverse else image[axis] * factor
    return [tuple(image)]


WINDOW_RULES: Mapping[str, Rule] = {
    "Conv2D": _convolution,
    "_FusedConv2D": _convolution,
    "Conv3D": _convolution,
    "DepthwiseConv2dNative": _depthwise,
    "_FusedDepthwiseConv2dNative": _depthwise,
    "Conv2DBackpropInput": _input_gradient,
    "Conv3DBackpropInputV2": _input_gradient,
    "DepthwiseConv2dNativeBackpropInput": shape_from_input(0),
    "Conv2DBackpropFilter": shape_from_input(1),
    "Conv3DBackpropFilterV2": shape_from_input(1),
    "DepthwiseConv2dNativeBackpropFilter": shape_from_input(1),
    "AvgPoolGrad": shape_from_input(0),
    "AvgPool3DGrad": shape_from_input(0),
    "MaxPool": _pool,
    "MaxPool3D": _pool,
    "MaxPoolWithArgmax": _pool,
    "AvgPool": _pool,
    "AvgPool3D": _pool,
    "ResizeBilinear": _resize,
    "ResizeNearestNeighbor": _resize,
    "ResizeBicubic": _resize,
    "ResizeNearestNeighborGrad": _resize,
    "SpaceToBatchND": _space_to_batch,
    "BatchToSpaceND": _batch_to_space,
    "SpaceToDepth": _depth,
    "DepthToSpace": _depth,
}
