"""Measured training steps whose samples a ``torch.utils.data.DataLoader`` loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CLASSES = 64, 10  # pixels of a square image with three channels
WARM_UP, STEPS = 10, 40  # the first batches were loaded ahead
SAMPLE_TIME_S = 0.3  # for which the loading of samples is timed
WAITING, COMPUTING = "waiting", "computing"
Step = Callable[[torch.Tensor], None]


class Samples(Dataset[torch.Tensor]):
    """Images of which each takes a time to load: it waits for it, or computes.

    Parameters
    ----------
    kind : {"waiting", "computing"}
        Reads of a slow storage, emulated by a sleep; or augmentation of an image.
    cost : float
        Seconds of sleep, or passes of augmentation.
    """

    def __init__(self, kind: str, cost: float, side: int = SIDE, count: int = 1 << 20) -> None:
        self._kind, self._cost, self._side, self._count = kind, cost, side, count
        self._pixels = np.random.default_rng(0).integers(0, 256, (3, side + 8, side + 8), np.uint8)
        self._image = torch.zeros(3, side, side)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self._count:
            raise IndexError(index)
        if self._kind == WAITING:
            if self._cost:
                time.sleep(self._cost)
            return self._image
        for turn in range(round(self._cost)):
            image = augmented(self._pixels, index + turn, self._side)
        return torch.from_numpy(image)


def augmented(pixels: np.ndarray[Any, Any], index: int, side: int) -> np.ndarray[Any, Any]:
    """Return a crop of an image, flipped, with changed contrast, normalized."""
    left, top = index % 8, index // 8 % 8
    crop = pixels[:, top : top + side, left : left + side].astype(np.float32)
    if index % 2:
        crop = crop[:, :, ::-1]
    mean = crop.mean(axis=(1, 2), keepdims=True)
    contrast = np.clip(mean + 1.2 * (crop - mean), 0, 255)
    return np.ascontiguousarray((contrast / 255 - 0.45) / 0.225)


def convolutional() -> nn.Module:
    """Return a small convolutional network."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 12), (12, 24), (24, 48)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(48 * (SIDE // 8) ** 2, CLASSES))


class PatchTransformer(nn.Module):
    """Small transformer over the patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 16, stride=16)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (batch, classes)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # (batch, patches, width)
        logits: torch.Tensor = self.head(self.layer(tokens).mean(1))
        return logits


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "transformer": PatchTransformer,
}


def training_step(network: nn.Module) -> Step:
    """Return a training step by SGD."""
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)

    def step(images: torch.Tensor) -> None:
        optimizer.zero_grad()
        target = torch.zeros(len(images), dtype=torch.long)
        nn.functional.cross_entropy(network(images), target).backward()
        optimizer.step()

    return step


@dataclass(frozen=True, slots=True)
class Loaded:
    """Means over the steps of one run: seconds of a step, and of waiting for its batch."""

    step_s: float
    wait_s: float


def solo_step_s(step: Step, batch_size: int, side: int = SIDE) -> float:
    """Return the mean seconds of a step whose batch is in memory."""
    images = torch.zeros(batch_size, 3, side, side)
    return run(step, repeat(images), WARM_UP, STEPS // 2).step_s


def load(step: Step, samples: Samples, batch_size: int, workers: int) -> Loaded:
    """Measure steps that load their samples."""
    loader = DataLoader(samples, batch_size=batch_size, num_workers=workers)
    return run(step, iter(loader), WARM_UP, STEPS)


def run(step: Step, batches: Iterator[torch.Tensor], warm_up: int, steps: int) -> Loaded:
    """Measure steps after some that are not counted."""
    waits_s = []
    for turn in range(warm_up + steps):
        if turn == warm_up:
            start = time.perf_counter()
        before = time.perf_counter()
        images = next(batches)
        waits_s.append(time.perf_counter() - before)
        step(images)
    return Loaded((time.perf_counter() - start) / steps, float(np.mean(waits_s[warm_up:])))


def sample_times_s(samples: Samples, batch_size: int) -> tuple[float, float]:
    """Return the seconds of a sample in one process, and those in which it occupies a core."""
    batches = iter(DataLoader(samples, batch_size=batch_size))
    next(batches)
    start, start_cpu, count = time.perf_counter(), time.process_time(), 0
    while count < 3 or time.perf_counter() - start < SAMPLE_TIME_S:
        next(batches)
        count += 1
    loaded = count * batch_size
    taken_s, cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    return taken_s / loaded, min(cpu_s, taken_s) / loaded


def hand_over_s(batch_size: int, side: int, device_step_s: float) -> float:
    """Return the seconds in which the training process takes over a batch that is ready.

    Between two batches the process spins. Reading the batch counts as far as it takes longer than
    reading one of the process's own memory: its pages are new to the process.
    """
    loader = DataLoader(Samples(WAITING, 0.0, side), batch_size=batch_size, num_workers=1)
    own = repeat(torch.zeros(batch_size, 3, side, side))
    times_s: list[float] = []
    for batches in (iter(loader), own):
        taken_s = []
        for _ in range(WARM_UP + STEPS // 2):
            start = time.perf_counter()
            while time.perf_counter() < start + device_step_s:
                pass
            start = time.perf_counter()
            images = next(batches)
            images.sum()
            taken_s.append(time.perf_counter() - start)
        times_s.append(float(np.median(taken_s[WARM_UP:])))
    return times_s[0] - times_s[1]
