"""Anchors: a few fixed jobs that tell how a new device differs from its forecasts.

Each is measured solo, co-located with itself, and with two fixed partners. Together they cover
what devices differ in: convolutions, matrix products, many small operators, and memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from presage.features.device.device import Device, Share
from presage.pipelines.profiling.campaign.measurement_plan import ColocationDraw
from presage.pipelines.profiling.zoo import JobConfig

# The first two are the partners of all.
_SMALL = (
    ("resnet", "w32-d14", 8, "sgd"),
    ("transformer_encoder", "w128-d4-t64", 4, "adamw"),
    ("mobilenet", "w16-d12-s32", 8, "sgd"),
    ("neumf", "u140k-w16", 2048, "adam"),
)
_LARGE = (
    ("resnet", "50-s224", 32, "sgd"),
    ("transformer_encoder", "bert-base-t128", 16, "adamw"),
    ("mobilenet", "v2-s224", 32, "sgd"),
    ("neumf", "ml20m", 16384, "adam"),
)
PARTNERS = 2
# Besides fp32, the first of these that the device has.
_HALF = ("bf16", "fp16")


def anchor_precisions(device: Device, *, large: bool) -> tuple[str, ...]:
    """Return the precisions to measure: fp32, and on a GPU half precision."""
    half = [name for name in _HALF if name in device.peak_flops_per_s] if large else []
    return ("fp32", *half[:1])


def anchor_jobs(precisions: Sequence[str], *, large: bool) -> list[JobConfig]:
    """Return the anchors in the order of measurement; ``large`` ones are for a GPU."""
    return [
        JobConfig(*anchor, precision)
        for precision in precisions
        for anchor in (_LARGE if large else _SMALL)
    ]


def anchor_colocations(
    jobs: Sequence[JobConfig],
    measured: Collection[str],
    share: Share,
    done: Collection[ColocationDraw] = (),
) -> Iterator[ColocationDraw]:
    """Yield the co-locations of anchors that ran solo: with themselves first, then with partners.

    Parameters
    ----------
    jobs : sequence of JobConfig
        As :func:`anchor_jobs` returns them.
    measured : collection of str
        Names of the jobs with a solo run.
    share : Share
        Of each member.
    done : collection of ColocationDraw
        Co-locations that are measured already.
    """
    of_precision: dict[str, list[str]] = {}
    for job in jobs:
        of_precision.setdefault(job.precision, []).append(job.name)
    pairs = [(job.name, job.name) for job in jobs]
    for names in of_precision.values():
        pairs += [
            (partner, name) for i, partner in enumerate(names[:PARTNERS]) for name in names[i + 1 :]
        ]
    for pair in pairs:
        members, (first, second) = tuple(sorted(pair)), pair
        drawn = (members, (share, share))
        if {first, second} <= set(measured) and drawn not in done:
            yield drawn
