"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018).

On BipedalWalker, 24 observations and 4 actions, actor and critics of two layers of 256 have
73,220 and 2 x 73,473 parameters, and a target copy of each. One step updates the critics, the
actor and the targets. The paper updates the latter two only every second step, but all steps of a
measured job must be alike. The batch is a replay, random and resident.
"""

from __future__ import annotations

from copy import deepcopy

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

DISCOUNT, POLYAK = 0.99, 0.005
NOISE, MOST_NOISE = 0.2, 0.5


def network(inputs: int, width: int, outputs: int) -> nn.Sequential:
    """Return a network (B, inputs) -> (B, outputs) with two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, outputs),
    )  # fmt: skip


def training_step(
    *, batch_size: int, optimizer: str, observations: int, actions: int, width: int
) -> TrainingStep:
    """Return one update of the twin critics, then of the actor, then of all targets."""
    state, next_state = torch.randn(2, batch_size, observations).unbind(0)
    actor = nn.Sequential(network(observations, width, actions), nn.Tanh())
    if optimizer == INFERENCE:
        return inference(actor, (state,), input_elements=observations)
    action_taken = torch.rand(batch_size, actions) * 2 - 1
    rewards = torch.randn(batch_size, 1)
    critics = [network(observations + actions, width, 1) for _ in range(2)]
    online = nn.ModuleList([actor, *critics])
    targets = deepcopy(online).requires_grad_(False)
    target_actor, *target_critics = targets
    actor_stepper = make_optimizer(optimizer, actor.parameters())
    critic_stepper = make_optimizer(
        optimizer, [p for critic in critics for p in critic.parameters()]
    )

    @torch.no_grad()
    def critic_target() -> Tensor:
        """Return the target of the critics (B, 1): the lesser target value of a noisy action."""
        noise = (torch.randn_like(action_taken) * NOISE).clamp(-MOST_NOISE, MOST_NOISE)
        action = (target_actor(next_state) + noise).clamp(-1, 1)
        first, second = (critic(torch.cat([next_state, action], 1)) for critic in target_critics)
        return rewards + DISCOUNT * torch.minimum(first, second)

    def run() -> None:
        target = critic_target()
        replayed = torch.cat([state, action_taken], dim=1)
        first, second = (F.mse_loss(critic(replayed), target) for critic in critics)
        critic_stepper.zero_grad(set_to_none=True)
        (first + second).backward()  # type: ignore[no-untyped-call]
        critic_stepper.step()

        actor_loss = -critics[0](torch.cat([state, actor(state)], dim=1)).mean()
        actor_stepper.zero_grad(set_to_none=True)
        actor_loss.backward()
        actor_stepper.step()

        with torch.no_grad():
            for follower, leader in zip(targets.parameters(), online.parameters(), strict=True):
                follower.lerp_(leader, POLYAK)

    modules = (actor, *critics, target_actor, *target_critics)
    return TrainingStep(modules=modules, run=run, input_elements=observations)


FAMILY = Family(
    name="td3",
    variants={
        "o8-w64": {"observations": 8, "actions": 2, "width": 64},
        "o17-w256": {"observations": 17, "actions": 6, "width": 256},
        "o111-w400": {"observations": 111, "actions": 8, "width": 400},
        "o376-w512": {"observations": 376, "actions": 17, "width": 512},
    },
    batch_sizes=(32, 128, 512),
    large={"bipedalwalker": {"observations": 24, "actions": 4, "width": 256}},
    large_batch_sizes=(64, 256, 1024, 4096, 16384),
    optimizer="adam",
    build=training_step,
)
