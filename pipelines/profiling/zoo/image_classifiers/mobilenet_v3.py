"""MobileNetV3 (Howard et al. 2019): inverted residuals with squeeze-and-excitation, hardswish.

As published for the 1000 classes of ImageNet, "large" has 5,483,032 parameters and "small"
2,542,856 (torchvision's ``mobilenet_v3_large`` and ``mobilenet_v3_small``).
"""

from __future__ import annotations

from torch import nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    classification_step,
)
from presage.pipelines.profiling.zoo.image_classifiers.inverted_residual import (
    InvertedResidual,
    SqueezeExcitation,
    convolution,
    divisible,
    hardswish,
    relu,
)

CLASSES = 1000
STEM = 16
# Tables 1 and 2 of the paper: kernel, hidden, channels, has squeeze, has hardswish, stride.
LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
SMALL = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)


def mobilenet_v3(*, is_large: bool, width: float) -> nn.Sequential:
    """(B, 3, H, W) -> logits (B, CLASSES); the table's channels times ``width``."""
    channels = divisible(width * STEM)
    layers: list[nn.Module] = [convolution(3, channels, 3, stride=2), hardswish()]
    for kernel, hidden, out, has_squeeze, has_hardswish, stride in LARGE if is_large else SMALL:
        activation = hardswish if has_hardswish else relu
        widened, narrowed = divisible(width * hidden), divisible(width * out)
        squeeze = (
            SqueezeExcitation(widened, divisible(widened / 4), relu, nn.Hardsigmoid)
            if has_squeeze
            else None
        )
        layers.append(
            InvertedResidual(
                channels,
                widened,
                narrowed,
                stride=stride,
                kernel=kernel,
                activation=activation,
                squeeze=squeeze,
            )
        )
        channels = narrowed
    dense = divisible(width * (1280 if is_large else 1024))
    return nn.Sequential(
        *layers,
        convolution(channels, 6 * channels, 1),
        hardswish(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6 * channels, dense),
        hardswish(),
        nn.Dropout(0.2),
        nn.Linear(dense, CLASSES),
    )


def training_step(
    *, batch_size: int, optimizer: str, is_large: int, width_percent: int, side: int
) -> TrainingStep:
    """Return an image classification step."""
    return classification_step(
        mobilenet_v3(is_large=bool(is_large), width=width_percent / 100),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=CLASSES,
    )


FAMILY = Family(
    name="mobilenet_v3",
    variants={
        "small-w25-s64": {"is_large": 0, "width_percent": 25, "side": 64},
        "small-w50-s128": {"is_large": 0, "width_percent": 50, "side": 128},
        "small-w100-s64": {"is_large": 0, "width_percent": 100, "side": 64},
        "large-w35-s64": {"is_large": 1, "width_percent": 35, "side": 64},
    },
    batch_sizes=(2, 8, 16),
    large={
        "large-s224": {"is_large": 1, "width_percent": 100, "side": 224},
        "small-s224": {"is_large": 0, "width_percent": 100, "side": 224},
    },
    large_batch_sizes=(16, 32, 64, 128, 256, 512),
    optimizer="sgd",
    build=training_step,
)
