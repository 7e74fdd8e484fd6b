"""Random numbers of a step, which do not depend on what was drawn before."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np


def seed_step(seed: int, step: int, shard: int) -> None:
    """Seed torch, ``random`` and ``numpy.random`` for one shard of one step.

    A step that is repeated after a worker's death draws the same numbers again, and nothing has to
    be carried over when workers join.
    """
    import torch

    digest = blake2b(f"{seed}/{step}/{shard}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") >> 1  # torch takes 63 bits
    torch.default_generator.manual_seed(number)  # torch.manual_seed takes ten times as long
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    random.seed(number)
    np.random.seed(number % 2**32)  # users' transformations draw from it
