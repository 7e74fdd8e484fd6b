"""State and networks of the published policy (L1 to L4)."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from presage.placement.core.clusters import IDLE, Clusters
from presage.system.arrays import Array

WIDTHS = (256, 196, 196, 128)  # of the hidden layers


class PlacementState(NamedTuple):
    """State for the choice of one GPU (L1).

    Attributes
    ----------
    gpus : float
        Number of GPUs that the job needs, over the number of GPUs of the cluster.
    runtime : float
        Predicted run time without failures, over the longest one of the batch.
    taken : ndarray of shape (N,)
        0 for a GPU that can be used, 1 for one that is taken or has failed.
    """

    gpus: float
    runtime: float
    taken: Array

    def vector(self) -> NDArray[np.float32]:
        """Return the input of the networks, of shape (N + 2,)."""
        return np.concatenate([[self.gpus, self.runtime], self.taken]).astype(np.float32)


def state_of(clusters: Clusters, b: int, job: int, chosen: list[int]) -> PlacementState:
    """Return the state for the next GPU of a job that has some GPUs already."""
    taken = (clusters.gpus["holder"][b] != IDLE).astype(float)
    taken[chosen] = 1.0
    jobs = clusters.jobs[b]
    longest_s = max(float(jobs["runtime_s"].max()), 1e-9)
    return PlacementState(
        float(jobs["gpus"][job]) / len(taken), float(jobs["runtime_s"][job]) / longest_s, taken
    )


def make_network(inputs: int, outputs: int) -> nn.Sequential:
    """Return a fully connected network with ReLU and the published widths."""
    sizes = (inputs, *WIDTHS)
    layers: list[nn.Module] = []
    for one, following in pairwise(sizes):
        layers += [nn.Linear(one, following), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTHS[-1], outputs))


class PublishedPolicy(nn.Module):
    """Value network (L2) and policy network (L3) for a cluster of N GPUs."""

    def __init__(self, gpus: int) -> None:
        super().__init__()
        self.value = make_network(gpus + 2, 1)
        self.policy = make_network(gpus + 2, gpus)

    def log_probabilities(self, states: Tensor) -> Tensor:
        """Return the logarithms of p without taken and failed GPUs, of shape (S, N) (L4)."""
        logits: Tensor = self.policy(states)
        return torch.log_softmax(logits.masked_fill(states[:, 2:] > 0, -torch.inf), dim=1)

    @torch.no_grad()
    def choose(self, state: PlacementState, *, samples: bool) -> tuple[int, float]:
        """Return a GPU and the logarithm of its probability.

        Parameters
        ----------
        samples : bool
            Whether to draw from p, as in training; else the most likely GPU is returned.
        """
        found = self.log_probabilities(torch.from_numpy(state.vector())[None])[0]
        gpu = int(torch.multinomial(found.exp(), 1) if samples else found.argmax())
        return gpu, float(found[gpu])
