"""Page of the benchmark: docs/benchmarks/hazard.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from presage.features.hazard.hazard_model import HazardModel
from presage.models.hazard.hazard_score import Bin

TEXT = """# Prediction of failures

This benchmark measures the error of the predicted probability that a node fails within a day, from
its past outages. The trace is InfiniteHBD's: 400 nodes in 349 days
([docs/schedulers/faults.md](../schedulers/faults.md)). The model was chosen and fitted on the days
before day {until}, and the scores are those of the days after it. This page is written by

```console
$ PRESAGE_DATASETS=DATASETS python -m benchmarks.hazard  # half a minute
```

The trace is the file `fault_trace.json.gz` in `DATASETS/faults`.

## Results

| | constant rate | hazard model | target |
|---|---:|---:|---:|
| log loss of a node-day | {constant:.5f} | {loss:.5f} | 0.0229 |
| share of failures in the 5 % of node-days with the highest hazard | 5.0% | {top:.1%} | 24 % |
| deciles inside of the 95 % interval of the observed probability | | {calibrated} of 10 | |
| chi-square test of the deciles, p | | {p:.2f} | 0.05 |

{rows:,} node-days of nodes that are up at the start of the day, {failures} of them with a failure.
The model gains {gain:.1%} on the constant rate. The target was set with a slightly different
count of node-days, where the constant rate scores 0.02405: it is a gain of 4.8 % there.

![Reliability]({picture})

| decile | predicted | observed | 95 % interval | |
|---:|---:|---:|---:|---|
{deciles}

More than half of all node-days have nodes without a recent repair. Their predicted probabilities
are equal, so their order in these deciles is that of the table.

## The model

A node fails at a base rate, and each repair adds a hazard that decays, because many repairs do not
remove the cause:

    hazard = base + follow_ups * mean over h of (ln 2 / h * sum over repairs of 0.5^(age / h))

where h are the half-lives.

| base rate | follow-ups of a repair | half-lives |
|---:|---:|---:|
| {base:.5f} a day | {follow_ups:.2f} | {half_lives} days |

The half-lives were chosen by ten-fold cross-validation over nodes. A candidate has two parameters,
whatever the number of its half-lives.

| half-lives (days) | log loss, nodes left out, before day {until} |
|---|---:|
{candidates}

## Alternatives

Poisson regressions with a logarithmic link on features of the history. None of them has a better
cross-validated loss. Lifetime counts gain a quarter of what recent repairs gain, and make a model
with recent repairs worse after day {until}.

| features | before day {until}, nodes left out | after day {until} | in the top 5 % |
|---|---:|---:|---:|
| hazard model | {cv:.5f} | {loss:.5f} | {top:.1%} |
| constant rate | {cv_constant:.5f} | {constant:.5f} | 5.0% |
{alternatives}

## Longer horizons

Log loss of the model over that of a constant rate after day {until}, for the failure within several
days. The closed form needs no new fit.

| within | constant rate | hazard model | ratio |
|---|---:|---:|---:|
{horizons}

## Limits

- The trace has outages of whole nodes. Hazards of single devices use the same law, and the rate of
  the cluster at hand.
- Its failures come in waves. The interval of a forecast comes from bootstrap draws of blocks of ten
  days, so it includes them. The rates were {early:.4f} a day before day {until} and {late:.4f}
  after it.
"""


def page(values: Mapping[str, Any], model: HazardModel, picture: str) -> str:
    """Return the text of the page."""
    bins: Sequence[Bin] = values["bins"]
    return TEXT.format(
        **values,
        picture=picture,
        gain=1 - values["loss"] / values["constant"],
        rows=values["node_days"],
        base=model.base_per_day,
        follow_ups=model.follow_ups,
        half_lives=", ".join(f"{days:g}" for days in model.half_lives_days),
        calibrated=sum(one.is_calibrated for one in bins),
        deciles="\n".join(
            f"| {i} | {one.predicted:.3%} | {one.observed:.3%} | {one.low:.3%} to {one.high:.3%} | "
            f"{'' if one.is_calibrated else 'outside'} |"
            for i, one in enumerate(bins, 1)
        ),
        candidates="\n".join(f"| {name} | {loss:.5f} |" for name, loss in values["losses"].items()),
        alternatives="\n".join(
            f"| {name} | {cv:.5f} | {loss:.5f} | {top:.1%} |"
            for name, (cv, loss, top) in values["scores"].items()
        ),
        horizons="\n".join(
            f"| {days} d | {constant:.4f} | {loss:.4f} | {loss / constant:.3f} |"
            for days, constant, loss in values["horizon_losses"]
        ),
    )
