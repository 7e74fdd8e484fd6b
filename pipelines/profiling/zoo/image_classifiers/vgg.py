"""Plain deep convolutional networks (Simonyan, Zisserman 2014), for 32 x 32 images and ImageNet.

As published for the 1000 classes of ImageNet, without batch norm, VGG-11 has 132,863,336
parameters, VGG-16 138,357,544 and VGG-19 143,667,240 (torchvision's ``vgg11`` and so on). For
CIFAR-10 they are customarily trained with batch norm and a single dense layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from presage.pipelines.profiling.running.training_step import TrainingStep
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.image_classifiers.image_classification import (
    CIFAR_SIDE,
    classes_at,
    classification_step,
)

CLASSES = 100  # of the small variants
STAGE_WIDENING = (1, 2, 4, 8, 8)
STAGES = {  # convolutions of each stage, by depth: table 1 of the paper, columns A, D and E
    11: (1, 1, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
STEM, DENSE = 64, 4096


def small_vgg(width: int, convolutions: int, dense: int) -> nn.Sequential:
    """(B, 3, 32, 32) -> logits (B, CLASSES).

    Five stages of ``convolutions`` layers, each ending in a max pool, then two layers ``dense``
    wide, which hold most of the parameters.
    """
    return nn.Sequential(
        *_stages(width, [convolutions] * 5, has_norm=True),
        nn.Flatten(),  # (B, 8 * width): five pools leave one pixel of the 32 x 32
        *_dense(8 * width, dense, CLASSES),
    )


def vgg(depth: int, side: int) -> nn.Sequential:
    """(B, 3, side, side) -> logits (B, classes), as published."""
    if side == CIFAR_SIDE:
        stages = _stages(STEM, STAGES[depth], has_norm=True)
        return nn.Sequential(*stages, nn.Flatten(), nn.Linear(8 * STEM, classes_at(side)))
    return nn.Sequential(
        *_stages(STEM, STAGES[depth], has_norm=False),
        nn.Flatten(),
        *_dense(8 * STEM * (side // 32) ** 2, DENSE, classes_at(side)),
    )


def _stages(width: int, convolutions: Sequence[int], *, has_norm: bool) -> list[nn.Module]:
    """(B, 3, H, W) -> (B, 8 * width, H / 32, W / 32)."""
    layers: list[nn.Module] = []
    channels = 3
    for widening, count in zip(STAGE_WIDENING, convolutions, strict=True):
        for _ in range(count):
            layers.append(nn.Conv2d(channels, width * widening, 3, padding=1))
            layers += [nn.BatchNorm2d(width * widening)] if has_norm else []
            layers.append(nn.ReLU(inplace=True))
            channels = width * widening
        layers.append(nn.MaxPool2d(2))
    return layers


def _dense(features: int, dense: int, classes: int) -> list[nn.Module]:
    """(B, features) -> logits (B, classes)."""
    return [
        nn.Linear(features, dense),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(dense, dense),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(dense, classes),
    ]


def training_step(
    *,
    batch_size: int,
    optimizer: str,
    width: int = 0,
    convolutions: int = 0,
    dense: int = 0,
    depth: int = 0,
    side: int = CIFAR_SIDE,
) -> TrainingStep:
    """Classify images with the published network of a depth, else with one of that width."""
    return classification_step(
        vgg(depth, side) if depth else small_vgg(width, convolutions, dense),
        batch_size=batch_size,
        optimizer=optimizer,
        side=side,
        classes=classes_at(side) if depth else CLASSES,
    )


FAMILY = Family(
    name="vgg",
    variants={
        "w16-d8": {"width": 16, "convolutions": 1, "dense": 512},
        "w32-d8": {"width": 32, "convolutions": 1, "dense": 1024},
        "w32-d13": {"width": 32, "convolutions": 2, "dense": 1024},
        "w64-d8": {"width": 64, "convolutions": 1, "dense": 4096},
    },
    batch_sizes=(2, 8, 32, 64),
    large={
        "11-s32": {"depth": 11, "side": 32},
        "11-s224": {"depth": 11, "side": 224},
        "16-s224": {"depth": 16, "side": 224},
        "19-s224": {"depth": 19, "side": 224},
    },
    large_batch_sizes=(16, 32, 64, 128, 256),
    optimizer="sgd",
    build=training_step,
)
