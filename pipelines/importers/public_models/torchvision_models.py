"""torchvision's classifiers, built by the zoo, timm or this package, and a benchmark's step.

torchvision itself is not an extra. A model is used only if its parameter count matches
torchvision's documentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from presage.errors import GraphError
from presage.features.from_torch.graph import trace_step
from presage.features.graph.op_graph import OpGraph
from presage.pipelines.importers.public_models import light_classifiers, timm_models
from presage.pipelines.importers.public_models.light_classifiers import (
    mnasnet,
    shufflenet_v2,
    squeezenet,
)
from presage.pipelines.profiling import zoo
from presage.pipelines.profiling.zoo.image_classifiers.mobilenet import mobilenet_v2
from presage.pipelines.profiling.zoo.image_classifiers.resnet import resnet

SIDE = 224
DTYPES = {
    "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32, "fp64": torch.float64
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Classifier:
    """A torchvision model: its published number of parameters, and an equivalent builder."""

    parameters: int
    make: Callable[[], nn.Module]


def _timm(name: str) -> Callable[[], nn.Module]:
    return lambda: timm_models.build(name, 0, 1)[0]


def _resnet(depth: int) -> Callable[[], nn.Module]:
    return lambda: resnet(depth, SIDE)


def _vgg(convolutions: tuple[int, ...], *, has_norm: bool) -> Callable[[], nn.Module]:
    """Return VGG as published; timm's has convolutions instead of dense layers."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        channels = 3
        for stage, count in enumerate(convolutions):
            width = 64 * min(2**stage, 8)
            for _ in range(count):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width)] if has_norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = width
            layers.append(nn.MaxPool2d(2))
        dense = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                 nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                 nn.Linear(4096, 1000)]  # fmt: skip
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *dense)

    return make


_VGG11, _VGG13 = (1, 1, 2, 2, 2), (2, 2, 2, 2, 2)
_VGG16, _VGG19 = (2, 2, 3, 3, 3), (2, 2, 4, 4, 4)
CLASSIFIERS = {
    "densenet121": Classifier(7_978_856, _timm("densenet121")),
    "densenet161": Classifier(28_681_000, _timm("densenet161")),
    "densenet169": Classifier(14_149_480, _timm("densenet169")),
    "densenet201": Classifier(20_013_928, _timm("densenet201")),
    "mnasnet0_5": Classifier(2_218_512, partial(mnasnet, 0.5)),
    "mnasnet0_75": Classifier(3_170_208, partial(mnasnet, 0.75)),
    "mnasnet1_0": Classifier(4_383_312, partial(mnasnet, 1.0)),
    "mnasnet1_3": Classifier(6_282_256, partial(mnasnet, 1.3)),
    "mobilenet_v2": Classifier(3_504_872, lambda: mobilenet_v2(SIDE)),
    "resnet18": Classifier(11_689_512, _resnet(18)),
    "resnet34": Classifier(21_797_672, _resnet(34)),
    "resnet50": Classifier(25_557_032, _resnet(50)),
    "resnet101": Classifier(44_549_160, _resnet(101)),
    "resnet152": Classifier(60_192_808, _resnet(152)),
    "resnext50_32x4d": Classifier(25_028_904, _timm("resnext50_32x4d")),
    "resnext101_32x8d": Classifier(88_791_336, _timm("resnext101_32x8d")),
    "shufflenet_v2_x0_5": Classifier(1_366_792, partial(shufflenet_v2, 0.5)),
    "shufflenet_v2_x1_0": Classifier(2_278_604, partial(shufflenet_v2, 1.0)),
    "shufflenet_v2_x1_5": Classifier(3_503_624, partial(shufflenet_v2, 1.5)),
    "shufflenet_v2_x2_0": Classifier(7_393_996, partial(shufflenet_v2, 2.0)),
    "squeezenet1_0": Classifier(1_248_424, partial(squeezenet, "1.0")),
    "squeezenet1_1": Classifier(1_235_496, partial(squeezenet, "1.1")),
    "vgg11": Classifier(132_863_336, _vgg(_VGG11, has_norm=False)),
    "vgg11_bn": Classifier(132_868_840, _vgg(_VGG11, has_norm=True)),
    "vgg13": Classifier(133_047_848, _vgg(_VGG13, has_norm=False)),
    "vgg13_bn": Classifier(133_053_736, _vgg(_VGG13, has_norm=True)),
    "vgg16": Classifier(138_357_544, _vgg(_VGG16, has_norm=False)),
    "vgg16_bn": Classifier(138_365_992, _vgg(_VGG16, has_norm=True)),
    "vgg19": Classifier(143_667_240, _vgg(_VGG19, has_norm=False)),
    "vgg19_bn": Classifier(143_678_248, _vgg(_VGG19, has_norm=True)),
    "wide_resnet50_2": Classifier(68_883_240, _timm("wide_resnet50_2")),
    "wide_resnet101_2": Classifier(126_886_696, _timm("wide_resnet101_2")),
}


@cache
def made_by() -> str:
    """Return the inputs of a graph besides the tracer: this file, its builders, timm's version."""
    digest = hashlib.sha256()
    ours = Path(__file__), Path(light_classifiers.__file__)
    for source in (*ours, *sorted(Path(zoo.__path__[0]).glob("*.py"))):
        digest.update(source.read_bytes())
    timm = timm_models.library()
    return f"{digest.hexdigest()[:16]} timm {timm.__version__ if timm else 'absent'}"


def trace_classifier(name: str, batch_size: int, precision: str, *, training: bool) -> OpGraph:
    """Trace a step as the benchmark runs it: without an optimizer after the backward pass.

    Raises
    ------
    GraphError
        timm is needed and not there, the parameters are not torchvision's, or tracing fails.
    """
    known = CLASSIFIERS[name]
    with torch.device("meta"):
        model = known.make().to(DTYPES[precision]).train(training)
        images = torch.empty(batch_size, 3, SIDE, SIDE, dtype=DTYPES[precision])
        labels = torch.empty(batch_size, dtype=torch.int64)
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != known.parameters:
        raise GraphError(f"{name}: {count} parameters, torchvision's has {known.parameters}")
    run = _training(model, images, labels) if training else _inference(model, images)
    return trace_step(run, [model], 3 * SIDE * SIDE)


def _training(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    loss = nn.CrossEntropyLoss()

    def run() -> None:
        model.zero_grad()
        loss(model(images), labels).backward()

    return run


def _inference(model: nn.Module, images: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            model(images)

    return run
