"""Messages of predicted starts and ends."""

from __future__ import annotations

from collections.abc import Sequence

from presage.schedulers.v1 import cluster_pb2 as pb
from presage.schedulers.what_if.answer import Answer, Distribution
from presage.schedulers.what_if.snapshot import Snapshot


def answers_message(
    answers: Sequence[Answer],
    snapshot: Snapshot,
    *,
    within_s: Sequence[float],
    time_unix_s: float,
    samples: int,
    horizon_s: float,
) -> pb.WhatIfResponse:
    """Return the message of answers to one question.

    Parameters
    ----------
    within_s : sequence of float
        Times of the probabilities of a start, from now.
    time_unix_s : float
        Time of the snapshot.
    samples, horizon_s
        Requested futures, for a message without answers.
    """
    basis = answers[0].basis if answers else None
    return pb.WhatIfResponse(
        answers=[_row(answer, within_s) for answer in answers],
        time_unix_s=time_unix_s,
        samples=basis.samples if basis else samples,
        horizon_s=basis.horizon_s if basis else horizon_s,
        run_times=basis.run_times if basis else {},
        assumptions=basis.assumptions if basis else snapshot.assumptions,
    )


def _row(answer: Answer, within_s: Sequence[float]) -> pb.WhatIfAnswer:
    variant, start = answer.variant, answer.start
    return pb.WhatIfAnswer(
        job_id=answer.job_id,
        variant=pb.WhatIfVariant(
            gpus=variant.gpus or 0,
            kinds=variant.kinds or (),
            compute_milli=round(1000 * variant.share) if variant.share else 0,
            policy=variant.policy or "",
        ),
        verdict=answer.verdict,
        start=_quantiles(start),
        end=_quantiles(answer.end),
        start_probabilities=[start.probability_within(one) for one in within_s] if start else (),
        reason=answer.why,
        policy=answer.basis.policy if answer.basis else "",
    )


def _quantiles(times: Distribution | None) -> pb.TimeQuantiles | None:
    if times is None:
        return None
    low_s, median_s, high_s = (times.quantile_s(one) for one in (0.1, 0.5, 0.9))
    return pb.TimeQuantiles(low_s=low_s, median_s=median_s, high_s=high_s)
