"""Training step of a denoising diffusion model, DDPM (Ho et al. 2020).

"ddpm-s32" is the paper's network for CIFAR-10 (35.7 M parameters), "ddpm-s64" that of DDIM (Song
et al. 2020) for CelebA, "latent-s64" is as wide as Stable Diffusion, without text guidance.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family
from presage.pipelines.profiling.zoo.vision.denoising_unet import DenoisingUNet

STEPS = 1000


class NoisePrediction(nn.Module):
    """Adds noise as after a number of diffusion steps, and lets the network predict it."""

    alpha_bar: Tensor

    def __init__(self, network: DenoisingUNet) -> None:
        super().__init__()
        self.network = network
        alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS), dim=0)
        self.register_buffer("alpha_bar", alpha_bar, persistent=False)  # (STEPS,)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        """(B, C, H, W) at times (B,) -> error of the prediction (B, C, H, W)."""
        noise = torch.randn_like(images)
        alpha_bar = self.alpha_bar.index_select(0, times).view(-1, 1, 1, 1)
        noisy = alpha_bar.sqrt() * images + (1 - alpha_bar).sqrt() * noise
        error: Tensor = self.network(noisy, times) - noise
        return error


def training_step(
    *, batch_size: int, optimizer: str, side: int, channels: int, **sizes: int
) -> TrainingStep:
    """Predict noise; ``sizes`` are those of :class:`DenoisingUNet`."""
    images = torch.randn(batch_size, channels, side, side)
    times = torch.randint(STEPS, (batch_size,))
    return supervised(
        NoisePrediction(DenoisingUNet(side=side, channels=channels, **sizes)),
        (images, times),
        lambda error: error.square().mean(),
        optimizer=optimizer,
        input_elements=channels * side * side,
    )


FAMILY = Family(
    name="diffusion",
    variants={
        "w32-s16": {
            "width": 32, "multipliers": 122, "blocks": 1, "attention_side": 8,
            "side": 16, "channels": 3,
        },
        "w32-s32": {
            "width": 32, "multipliers": 122, "blocks": 1, "attention_side": 16,
            "side": 32, "channels": 3,
        },
        "w64-s16": {
            "width": 64, "multipliers": 12, "blocks": 2, "attention_side": 8,
            "side": 16, "channels": 4,
        },
        "w32-s64": {
            "width": 32, "multipliers": 1122, "blocks": 1, "attention_side": 8,
            "side": 64, "channels": 3,
        },
    },
    batch_sizes=(1, 2, 4),
    optimizer="adam",
    build=training_step,
    large={
        "ddpm-s32": {
            "width": 128, "multipliers": 1222, "blocks": 2, "attention_side": 16,
            "side": 32, "channels": 3,
        },
        "ddpm-s64": {
            "width": 128, "multipliers": 12224, "blocks": 2, "attention_side": 16,
            "side": 64, "channels": 3,
        },
        "latent-s64": {
            "width": 320, "multipliers": 1244, "blocks": 2, "attention_side": 32,
            "side": 64, "channels": 4,
        },
    },
    large_batch_sizes=(4, 16, 64, 128),
)  # fmt: skip
