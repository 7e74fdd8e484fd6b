"""Law 1 at the switch: while it lives, all ranks have the same outcome of each number."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from presage.collectives.switch.errors import SwitchError
from tests.collectives.switch.ranks import connect

RANKS, NUMBERS, VALUES = 3, 60, 200


def outcome(client, plan, number):
    """Run a rank's part of a number; return its sum or its error."""
    values = VALUES + (plan == "other size")
    if plan == "late":
        time.sleep(0.003)
    buffer = np.full(values, number, np.float32)
    try:
        client.all_reduce(
            buffer, number=number, epoch=1, timeout_s=0.004 if plan == "impatient" else 10
        )
    except SwitchError as error:
        assert (buffer == number).all()
        return error
    return buffer


@pytest.mark.parametrize("seed", range(3))
def test_law_1_no_number_is_summed_for_some_ranks_and_refused_to_others(start, seed):
    switch = start(chunk_bytes=64, window=3, lease_ms=60_000)
    clients = connect(switch, ranks=RANKS)
    choices = random.Random(seed)
    plans = ["join"] * 6 + ["late", "late", "impatient", "other size"]
    summed = refused = 0
    with ThreadPoolExecutor(RANKS) as pool:
        for number in range(NUMBERS):
            mine = [choices.choice(plans) for _ in clients]
            found = list(pool.map(outcome, clients, mine, [number] * RANKS))
            errors = [one for one in found if isinstance(one, SwitchError)]
            assert len(errors) in (0, RANKS), (number, mine, found)
            assert not any(error.may_be_complete for error in errors)
            if not errors:
                assert all((one == RANKS * number).all() for one in found)
            summed, refused = summed + (not errors), refused + bool(errors)

    assert summed and refused
