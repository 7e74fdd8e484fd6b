"""CycleGAN (Zhu et al. 2017): unpaired translation of images to another domain and back.

Two generators of residual blocks, 11,378,179 parameters each as published with 9 blocks, and two
PatchGAN discriminators of a 70 x 70 view, 2,764,737 each (the authors' own implementation prints
11.378 M and 2.765 M). The history of generated images is left out: its cost is negligible.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import (
    INFERENCE,
    TrainingStep,
    inference,
    make_optimizer,
)
from presage.pipelines.profiling.zoo.family import Family

CYCLE_WEIGHT, IDENTITY_WEIGHT = 10.0, 5.0


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions on a mirrored border, plus a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.ReflectionPad2d(1),
            nn.Conv2d(channels, channels, 3),
            nn.InstanceNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> the same."""
        out: Tensor = x + self.residual(x)
        return out


def generator(width: int, blocks: int) -> nn.Sequential:
    """Return (B, 3, H, W) -> (B, 3, H, W); the residual blocks work on a quarter of the side."""
    layers: list[nn.Module] = [nn.ReflectionPad2d(3), nn.Conv2d(3, width, 7)]
    layers += [nn.InstanceNorm2d(width), nn.ReLU(inplace=True)]
    for before in (width, 2 * width):
        layers += [
            nn.Conv2d(before, 2 * before, 3, stride=2, padding=1),
            nn.InstanceNorm2d(2 * before),
            nn.ReLU(inplace=True),
        ]
    layers += [ResidualBlock(4 * width) for _ in range(blocks)]
    for after in (2 * width, width):
        layers += [
            nn.ConvTranspose2d(2 * after, after, 3, stride=2, padding=1, output_padding=1),
            nn.InstanceNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.ReflectionPad2d(3), nn.Conv2d(width, 3, 7), nn.Tanh())


def discriminator(width: int) -> nn.Sequential:
    """Return (B, 3, H, W) -> score of each 70 x 70 patch (B, 1, H / 8 - 2, W / 8 - 2)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2, inplace=True),
    ]
    channels = width
    for stride in (2, 2, 1):
        layers += [
            nn.Conv2d(channels, 2 * channels, 4, stride, padding=1),
            nn.InstanceNorm2d(2 * channels),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        channels *= 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, padding=1))


def _real(scores: Tensor) -> Tensor:
    return F.mse_loss(scores, torch.ones_like(scores))


def _fake(scores: Tensor) -> Tensor:
    return F.mse_loss(scores, torch.zeros_like(scores))


def _require_gradients(parameters: Iterable[nn.Parameter], *, required: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(required)


def training_step(
    *, batch_size: int, optimizer: str, width: int, blocks: int, side: int
) -> TrainingStep:
    """Return one step of both generators, then one of both discriminators."""
    horses, zebras = (torch.rand(batch_size, 3, side, side) * 2 - 1 for _ in range(2))
    to_zebra, to_horse = generator(width, blocks), generator(width, blocks)
    if optimizer == INFERENCE:
        return inference(to_zebra, (horses,), input_elements=3 * side * side)
    judge_zebra, judge_horse = discriminator(width), discriminator(width)
    judges = [*judge_zebra.parameters(), *judge_horse.parameters()]
    make_stepper = make_optimizer(optimizer, [*to_zebra.parameters(), *to_horse.parameters()])
    judge_stepper = make_optimizer(optimizer, judges)

    def run() -> None:
        _require_gradients(judges, required=False)
        make_stepper.zero_grad(set_to_none=True)
        made_zebras, made_horses = to_zebra(horses), to_horse(zebras)
        fooled = _real(judge_zebra(made_zebras)) + _real(judge_horse(made_horses))
        cycle = F.l1_loss(to_horse(made_zebras), horses) + F.l1_loss(to_zebra(made_horses), zebras)
        identity = F.l1_loss(to_zebra(zebras), zebras) + F.l1_loss(to_horse(horses), horses)
        make_loss = fooled + CYCLE_WEIGHT * cycle + IDENTITY_WEIGHT * identity
        make_loss.backward()  # type: ignore[no-untyped-call]
        make_stepper.step()

        _require_gradients(judges, required=True)
        judge_stepper.zero_grad(set_to_none=True)
        for judge, real, made in (
            (judge_zebra, zebras, made_zebras),
            (judge_horse, horses, made_horses),
        ):
            judge_loss = (_real(judge(real)) + _fake(judge(made.detach()))) / 2
            judge_loss.backward()  # type: ignore[no-untyped-call]
        judge_stepper.step()

    modules = (to_zebra, to_horse, judge_zebra, judge_horse)
    return TrainingStep(modules=modules, run=run, input_elements=2 * 3 * side * side)


FAMILY = Family(
    name="cyclegan",
    variants={
        "w4-r2-s64": {"width": 4, "blocks": 2, "side": 64},
        "w8-r3-s32": {"width": 8, "blocks": 3, "side": 32},
        "w8-r6-s64": {"width": 8, "blocks": 6, "side": 64},
        "w16-r2-s32": {"width": 16, "blocks": 2, "side": 32},
    },
    batch_sizes=(1, 2, 4),
    large={"r9-s256": {"width": 64, "blocks": 9, "side": 256}},
    large_batch_sizes=(1, 2, 4),
    optimizer="adam",
    build=training_step,
)
