"""Selection and order of measurements. Pure: the same arguments give the same plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presage.features.device.device import Share
from presage.pipelines.profiling.campaign.plan_space import distances
from presage.pipelines.profiling.running.work import colocation_id
from presage.pipelines.profiling.zoo import JobConfig
from presage.system.arrays import Array

REPEATS = 0.03  # chance that a further member is a copy of an earlier member
OVERFULL = (
    0.15  # chance to keep a co-location that probably does not fit: failures are training data too
)
PARTNERS = 6  # sets of partners drawn per leader; the most informative set is used
MAX_MISSES = 1000  # consecutive draws without a new co-location before drawing ends


def order_jobs(configs: Sequence[JobConfig], *, seed: int) -> list[JobConfig]:
    """Order ``configs`` so that every prefix is diverse.

    Families take turns. Within a family, the least measured variants come first, then the least
    measured batch sizes, optimizers and precisions.
    """
    rng = random.Random(seed)  # noqa: S311 - a plan, not a secret
    families: dict[str, list[JobConfig]] = {}
    for config in sorted(configs, key=lambda config: config.name):
        families.setdefault(config.family, []).append(config)
    names = list(families)
    rng.shuffle(names)
    queues = [_spread(families[name], rng) for name in names]
    longest = max(map(len, queues), default=0)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _spread(configs: list[JobConfig], rng: random.Random) -> list[JobConfig]:
    waiting = rng.sample(configs, len(configs))  # the order breaks ties
    uses: Counter[tuple[str, object]] = Counter()
    ordered = []
    while waiting:
        best = min(waiting, key=lambda config: [uses[aspect] for aspect in _aspects(config)])
        waiting.remove(best)
        ordered.append(best)
        uses.update(_aspects(best))
    return ordered


def _aspects(config: JobConfig) -> tuple[tuple[str, object], ...]:
    """Return the aspects to diversify, most important first."""
    return (
        ("variant", config.variant),
        ("batch_size", config.batch_size),
        ("optimizer", config.optimizer),
        ("precision", config.precision),
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that could be measured, with its feature vector and the cost of measuring it."""

    config: JobConfig
    vector: Array
    seconds: float


def farthest_first(waiting: Sequence[Candidate], measured: Sequence[Array]) -> Iterator[Candidate]:
    """Yield ``waiting`` in the order that fills the space of jobs fastest.

    Each step takes the job that is farthest from all previous jobs, per second of measuring; the
    first one, without previous jobs, is the one nearest to the mean.

    References
    ----------
    Gonzalez: Clustering to minimize the maximum intercluster distance, 1985 (the traversal).
    """
    if not waiting:
        return
    vectors = np.stack([job.vector for job in waiting])
    seconds = np.array([job.seconds for job in waiting])
    remaining = np.ones(len(waiting), dtype=bool)
    if measured:
        nearest = distances(vectors, np.stack(measured)).min(axis=1)
    else:
        nearest = np.full(len(waiting), np.inf)
    while remaining.any():
        if np.isinf(nearest).all():
            score = -np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
        else:
            score = nearest / seconds
        best = int(np.argmax(np.where(remaining, score, -np.inf)))
        remaining[best] = False
        yield waiting[best]
        nearest = np.minimum(nearest, distances(vectors, vectors[best : best + 1])[:, 0])


def informative_order(
    configs: Sequence[JobConfig],
    describe: Callable[[Sequence[JobConfig]], tuple[int, Sequence[Candidate]]],
    *,
    pool: int,
    measured: Sequence[Array],
) -> Iterator[Candidate]:
    """Yield ``configs`` by :func:`farthest_first`, ``pool`` of them at a time.

    Describing a job means tracing it, which is too slow for thousands of jobs if a few dozen will
    be measured. ``describe`` returns how many of the first jobs it processed, at least 1, and the
    descriptions of those that can be measured.
    """
    waiting, chosen = list(configs), list(measured)
    while waiting:
        visited, described = describe(waiting[:pool])
        waiting = waiting[visited:]
        for job in farthest_first(described, chosen):
            chosen.append(job.vector)
            yield job


@dataclass(frozen=True, slots=True)
class MeasuredJob:
    """A job with a solo measurement, as a possible member of a co-location."""

    vector: Array
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """Composition of co-locations.

    Attributes
    ----------
    sizes : mapping of int to float
        Weight of each number of members.
    modes : tuple of str
        Sharing modes, in turns; with "mps" each member gets a part, equal or not.
    undivided : Share
        Share of a member if the device is not divided.
    """

    sizes: Mapping[int, float]
    modes: tuple[str, ...]
    undivided: Share


ColocationDraw = tuple[
    tuple[str, ...], tuple[Share, ...]
]  # members in sorted order, and their shares


def draw_colocations(
    measured: Mapping[str, MeasuredJob],
    device_kind: str,
    sharing: Sharing,
    *,
    capacity_bytes: int,
    seed: int,
    done: Sequence[ColocationDraw] = (),
) -> Iterator[ColocationDraw]:
    """Yield distinct co-locations of jobs with solo measurements until few are left.

    Every job leads a co-location before any leads its second. Of several random sets of partners,
    the one farthest from earlier draws is used. ``done`` are co-locations that need no further
    measurement: jobs in none of them lead first.
    """
    rng = random.Random(seed)  # noqa: S311
    jobs, misses, turn = sorted(measured), 0, len(done)
    drawn = {colocation_id(members, device_kind, shares) for members, shares in done}
    places = [
        _colocation_vector(m, shares, measured) for m, shares in done if measured.keys() >= set(m)
    ]
    met = {job for members, _ in done for job in members}
    fresh = [job for job in jobs if job not in met]
    leaders = rng.sample(fresh, len(fresh))
    while jobs and misses < MAX_MISSES:
        if not leaders:
            leaders = rng.sample(jobs, len(jobs))
        leader = leaders.pop()
        mode = sharing.modes[turn % len(sharing.modes)]
        candidates = []
        for _ in range(PARTNERS):
            members = _draw(leader, jobs, sharing.sizes, rng)
            over = sum(measured[job].memory_bytes for job in members) > capacity_bytes
            if over and rng.random() > OVERFULL:
                continue
            shares = _divide(len(members), mode, sharing.undivided, rng)
            if colocation_id(members, device_kind, shares) not in drawn:
                candidates.append((members, shares))
        if not candidates:
            misses += 1
            continue
        misses, turn = 0, turn + 1
        spots = [_colocation_vector(members, shares, measured) for members, shares in candidates]
        best = _farthest_index(spots, places)
        places.append(spots[best])
        members, shares = candidates[best]
        drawn.add(colocation_id(members, device_kind, shares))
        yield members, shares


def _draw(
    leader: str, jobs: list[str], sizes: Mapping[int, float], rng: random.Random
) -> tuple[str, ...]:
    members = [leader]
    (size,) = rng.choices(list(sizes), weights=list(sizes.values()))
    while len(members) < size:
        others = [job for job in jobs if job not in members]
        repeat = not others or rng.random() < REPEATS
        members.append(rng.choice(members if repeat else others))
    return tuple(sorted(members))


def _divide(members: int, mode: str, undivided: Share, rng: random.Random) -> tuple[Share, ...]:
    """Return the shares of the members: with MPS a part each, in tenths of the device."""
    if mode != "mps":
        return (undivided,) * members
    if rng.random() < 0.5:
        return (Share(round(1 / members, 2), mode),) * members
    weights = [rng.randint(1, 8) for _ in range(members)]
    return tuple(Share(max(0.1, round(w / sum(weights), 1)), mode) for w in weights)


def _colocation_vector(
    members: Sequence[str], shares: Sequence[Share], measured: Mapping[str, MeasuredJob]
) -> Array:
    """Return the vector of a co-location, independent of the order of its members."""
    vectors = np.stack([measured[job].vector for job in members])
    fractions = [share.fraction for share in shares]
    own = [3.0 * len(members), 8.0 * min(fractions), 8.0 * max(fractions)]
    return np.concatenate([vectors.mean(axis=0), np.ptp(vectors, axis=0), own])


def _farthest_index(spots: Sequence[Array], places: Sequence[Array]) -> int:
    if not places:
        return 0
    return int(np.argmax(distances(np.stack(spots), np.stack(places)).min(axis=1)))
