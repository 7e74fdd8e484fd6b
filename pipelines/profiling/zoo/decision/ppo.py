"""Proximal policy optimization (Schulman et al. 2017) of small dense networks.

On LunarLander, 8 observations and 4 actions, actor and critic of two layers of 64 have 9,797
parameters. The batch is a minibatch of an actor's experience, random and resident.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import (
    INFERENCE,
    TrainingStep,
    inference,
    make_optimizer,
)
from presage.pipelines.profiling.zoo.family import Family

CLIP, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.2, 0.5, 0.01


def network(observations: int, width: int, depth: int, outputs: int) -> nn.Sequential:
    """Return a network (B, observations) -> (B, outputs) with ``depth`` tanh layers."""
    layers: list[nn.Module] = []
    for layer in range(depth):
        layers += [nn.Linear(observations if layer == 0 else width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def training_step(
    *, batch_size: int, optimizer: str, observations: int, actions: int, width: int, depth: int
) -> TrainingStep:
    """Return one minibatch of the clipped objective, for actor and critic."""
    observed = torch.randn(batch_size, observations)
    actor = network(observations, width, depth, actions)
    if optimizer == INFERENCE:
        return inference(actor, (observed,), input_elements=observations)
    chosen = torch.randint(actions, (batch_size, 1))
    old_log_share = torch.log(torch.rand(batch_size))
    advantage, returned = torch.randn(batch_size), torch.randn(batch_size)
    critic = network(observations, width, depth, 1)
    stepper = make_optimizer(optimizer, [*actor.parameters(), *critic.parameters()])

    def run() -> None:
        log_shares = F.log_softmax(actor(observed), dim=1)  # (B, actions)
        entropy = -(log_shares.exp() * log_shares).sum(dim=1)
        ratio = (log_shares.gather(1, chosen).squeeze(1) - old_log_share).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        gained = torch.minimum(ratio * advantage, clipped * advantage)
        value_loss = F.mse_loss(critic(observed).squeeze(1), returned)
        loss = VALUE_WEIGHT * value_loss - (gained + ENTROPY_WEIGHT * entropy).mean()
        stepper.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        stepper.step()

    return TrainingStep(modules=(actor, critic), run=run, input_elements=observations)


FAMILY = Family(
    name="ppo",
    variants={
        "o4-w32-d2": {"observations": 4, "actions": 2, "width": 32, "depth": 2},
        "o17-w256-d2": {"observations": 17, "actions": 6, "width": 256, "depth": 2},
        "o128-w512-d2": {"observations": 128, "actions": 18, "width": 512, "depth": 2},
        "o376-w256-d4": {"observations": 376, "actions": 17, "width": 256, "depth": 4},
    },
    batch_sizes=(64, 512, 2048),
    large={"lunarlander": {"observations": 8, "actions": 4, "width": 64, "depth": 2}},
    large_batch_sizes=(64, 256, 1024, 4096, 16384),
    optimizer="adam",
    build=training_step,
)
