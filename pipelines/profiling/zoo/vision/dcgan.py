"""Deep convolutional generative adversarial network (Radford et al. 2015).

As published for 64 x 64 images, of width 64, the generator has 3,576,704 parameters and the
discriminator 2,765,568 (those of PyTorch's tutorial on it).
"""

from __future__ import annotations

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

LATENT = 100


def generator(width: int, doublings: int) -> nn.Sequential:
    """Latent (B, LATENT, 1, 1) -> images (B, 3, side, side), side = 4 * 2**doublings."""
    channels = width * 2 ** (doublings - 1)
    layers: list[nn.Module] = [
        nn.ConvTranspose2d(LATENT, channels, 4, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]
    for _ in range(doublings - 1):
        layers += [
            nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels // 2),
            nn.ReLU(inplace=True),
        ]
        channels //= 2
    return nn.Sequential(
        *layers, nn.ConvTranspose2d(channels, 3, 4, stride=2, padding=1, bias=False), nn.Tanh()
    )


def discriminator(width: int, doublings: int) -> nn.Sequential:
    """Images (B, 3, side, side) -> logits of being real (B, 1); the generator mirrored."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 4, stride=2, padding=1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
    ]
    channels = width
    for _ in range(doublings - 1):
        layers += [
            nn.Conv2d(channels, channels * 2, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels * 2),
            nn.LeakyReLU(0.2, inplace=True),
        ]
        channels *= 2
    return nn.Sequential(*layers, nn.Conv2d(channels, 1, 4, bias=False), nn.Flatten())


def _real(logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


def _fake(logits: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.zeros_like(logits))


def training_step(*, batch_size: int, optimizer: str, width: int, doublings: int) -> TrainingStep:
    """Return one step of the discriminator, then one of the generator, or its inference."""
    side = 4 * 2**doublings
    images = torch.randn(batch_size, 3, side, side)
    latent = torch.randn(batch_size, LATENT, 1, 1)
    make, judge = generator(width, doublings), discriminator(width, doublings)
    if optimizer == INFERENCE:
        return inference(make, (latent,), input_elements=LATENT)
    make_stepper = make_optimizer(optimizer, make.parameters())
    judge_stepper = make_optimizer(optimizer, judge.parameters())

    def run() -> None:
        fakes = make(latent.normal_())
        judge_stepper.zero_grad(set_to_none=True)
        judge_loss = _real(judge(images)) + _fake(judge(fakes.detach()))
        judge_loss.backward()  # type: ignore[no-untyped-call]
        judge_stepper.step()

        make_stepper.zero_grad(set_to_none=True)
        _real(judge(fakes)).backward()  # type: ignore[no-untyped-call]
        make_stepper.step()

    return TrainingStep(modules=(make, judge), run=run, input_elements=3 * side * side)


FAMILY = Family(
    name="dcgan",
    variants={
        "w16-s32": {"width": 16, "doublings": 3},
        "w32-s32": {"width": 32, "doublings": 3},
        "w64-s32": {"width": 64, "doublings": 3},
        "w16-s64": {"width": 16, "doublings": 4},
        "w32-s64": {"width": 32, "doublings": 4},
    },
    batch_sizes=(2, 8, 32),
    large={"w64-s64": {"width": 64, "doublings": 4}},
    large_batch_sizes=(32, 64, 128, 256, 512, 1024),
    optimizer="adam",
    build=training_step,
)
