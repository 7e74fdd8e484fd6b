"""Output of commands that predict starts without a controller of the live cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from presage.cli.options.common import seconds_of
from presage.cli.scheduling.cluster.when.options import WITHIN, FutureOptions

if TYPE_CHECKING:
    from presage.schedulers.what_if.answer import Answer
    from presage.schedulers.what_if.snapshot import Snapshot


def print_starts(
    answers: Sequence[Answer], snapshot: Snapshot, futures: FutureOptions, *, as_json: bool
) -> None:
    """Print the table and the sentences, or JSON.

    Raises
    ------
    ConfigError
        ``--within`` is no duration.
    """
    from presage.cli.output.json_output import message_content, print_json
    from presage.cli.scheduling.cluster.when.when_tables import print_answers
    from presage.schedulers.live.protocol.what_if_messages import answers_message

    within = futures.within or WITHIN
    found = answers_message(
        answers,
        snapshot,
        within_s=[seconds_of(one, "--within") for one in within],
        time_unix_s=snapshot.now_s,
        samples=futures.samples,
        horizon_s=futures.horizon_s,
    )
    if as_json:
        print_json(message_content(found))
    else:
        print_answers(found, within)
