"""Asynchronous advantage actor-critic (Mnih et al. 2016) on frames of Pong: one worker.

The network is the customary one for 80 x 80 frames: four convolutions with pools, an LSTM cell of
512, two heads; 3,249,639 parameters. A batch is the number of environments. Frames pass one at a
time, as from an environment; frames and actions are random and resident. Gradients are those of
the generalised advantage estimate.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from presage.pipelines.profiling.running.training_step import TrainingStep, supervised
from presage.pipelines.profiling.zoo.family import Family

ACTIONS = 6
SIDE, LAST_SIDE = 80, 4
DISCOUNT, TRACE_DECAY = 0.99, 1.0
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.01


class ActorCritic(nn.Module):
    """Convolutions, an LSTM cell, the logits of the actions and the value."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, kernel, padding in (
            (1, channels, 5, 2),
            (channels, channels, 5, 1),
            (channels, 2 * channels, 4, 1),
            (2 * channels, 2 * channels, 3, 1),
        ):
            layers += [nn.Conv2d(before, after, kernel, padding=padding), nn.MaxPool2d(2)]
            layers.append(nn.ReLU(inplace=True))
        self.see = nn.Sequential(*layers, nn.Flatten())  # sides 80, 40, 19, 9, 4
        self.remember = nn.LSTMCell(2 * channels * LAST_SIDE**2, width)
        self.actor = nn.Linear(width, ACTIONS)
        self.critic = nn.Linear(width, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames (T, B, 1, SIDE, SIDE) -> action logits and value (T, B, ACTIONS + 1)."""
        state: tuple[Tensor, Tensor] | None = None
        outputs: list[Tensor] = []
        for frame in frames.unbind(0):
            state = self.remember(self.see(frame), state)
            hidden = state[0]  # (B, width)
            outputs.append(torch.cat([self.actor(hidden), self.critic(hidden)], dim=1))
        return torch.stack(outputs)


def advantages(rewards: Tensor, values: Tensor) -> Tensor:
    """Compute generalised advantage estimates (Schulman et al. 2015).

    Parameters
    ----------
    rewards : Tensor of shape (T, B)
    values : Tensor of shape (T + 1, B)
        The last row holds the states after the last reward.

    Returns
    -------
    Tensor of shape (T, B)
    """
    surprises = rewards + DISCOUNT * values[1:] - values[:-1]
    later = torch.zeros_like(surprises[0])
    estimates: list[Tensor] = []
    for surprise in reversed(surprises.unbind(0)):
        later = surprise + DISCOUNT * TRACE_DECAY * later
        estimates.append(later)
    return torch.stack(estimates[::-1])


def training_step(
    *, batch_size: int, optimizer: str, steps: int, channels: int, width: int
) -> TrainingStep:
    """Return one update from ``steps`` frames of each environment, and one frame to bootstrap."""
    frames = torch.rand(steps + 1, batch_size, 1, SIDE, SIDE)
    actions = torch.randint(ACTIONS, (steps, batch_size, 1))
    rewards = torch.randn(steps, batch_size)

    def loss(outputs: Tensor) -> Tensor:
        logits, values = outputs[:-1, :, :ACTIONS], outputs[..., ACTIONS]
        log_shares = F.log_softmax(logits, dim=2)
        entropy = -(log_shares.exp() * log_shares).sum(dim=2)
        gained = advantages(rewards, values.detach())
        policy_loss = -(log_shares.gather(2, actions).squeeze(2) * gained)
        returns = gained + values[:-1].detach()
        value_loss = (returns - values[:-1]).square()
        per_step = policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy
        return per_step.sum(dim=0).mean()

    return supervised(
        ActorCritic(channels, width),
        (frames,),
        loss,
        optimizer=optimizer,
        input_elements=(steps + 1) * SIDE * SIDE,
    )


FAMILY = Family(
    name="a3c",
    variants={
        "n5-c4-w64": {"steps": 5, "channels": 4, "width": 64},
        "n5-c16-w256": {"steps": 5, "channels": 16, "width": 256},
        "n20-c4-w128": {"steps": 20, "channels": 4, "width": 128},
        "n20-c8-w512": {"steps": 20, "channels": 8, "width": 512},
    },
    batch_sizes=(1, 2, 4),
    large={"pong-n20": {"steps": 20, "channels": 32, "width": 512}},
    large_batch_sizes=(1, 4, 16, 64, 256),
    optimizer="adam",
    build=training_step,
)
