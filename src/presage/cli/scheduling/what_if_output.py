"""Output of commands that predict starts without a controller of the live cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from presage.cli.scheduling.cluster.when.options import WITHIN, FutureOptions

if TYPE_CHECKING:
    from presage.schedulers.what_if.answer import Answer
    from presage.schedulers.what_if.snapshot import Snapshot


def stop_after_limit() -> Callable[[], bool]:
    """Return a function that says whether the limit of an answer has passed since this call."""
    from presage.schedulers.what_if.future_processes import Deadline
    from presage.schedulers.what_if.what_if import LIMIT_S

    return Deadline(time.monotonic() + LIMIT_S)


def print_starts(
    answers: Sequence[Answer],
    snapshot: Snapshot,
    futures: FutureOptions,
    within_s: Sequence[float],
    *,
    as_json: bool,
) -> None:
    """Print the table and the sentences, or JSON.

    Parameters
    ----------
    within_s : sequence of float
        ``futures.within_s``, which commands read before they simulate.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.when.when_tables import print_answers
    from presage.schedulers.live.protocol.what_if_messages import answers_message

    within = futures.within or WITHIN
    found = answers_message(
        answers, snapshot, within_s=within_s, time_unix_s=snapshot.now_s,
        samples=futures.samples, horizon_s=futures.horizon_s,
    )  # fmt: skip
    if as_json:
        print_json(message_content(found))
    else:
        print_answers(found, within)
