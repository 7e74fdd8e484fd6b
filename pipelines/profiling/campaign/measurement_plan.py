"""What to measure, and in which order. Pure: the same arguments give the same plan."""

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

REPEATS = 0.03  # chance that a further member is a copy of one that is there
OVERFULL = (
    0.15  # chance to keep a co-location that memory will hardly hold: not fitting is learnt too
)
PARTNERS = 6  # sets of partners that are drawn for a leader, to take the one that teaches most
MOST_MISSES = 1000  # draws in a row that gave nothing new: all there is has been drawn


def order_jobs(configs: Sequence[JobConfig], *, seed: int) -> list[JobConfig]:
    """All ``configs``, ordered so that any number of the first ones is diverse.

    Families take turns; within a family the variants least seen so far come first, and among
    those the batch sizes, optimizers and precisions least seen.
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
    waiting = rng.sample(configs, len(configs))  # the order among equals
    seen: Counter[tuple[str, object]] = Counter()
    ordered = []
    while waiting:
        best = min(waiting, key=lambda config: [seen[aspect] for aspect in _aspects(config)])
        waiting.remove(best)
        ordered.append(best)
        seen.update(_aspects(best))
    return ordered


def _aspects(config: JobConfig) -> tuple[tuple[str, object], ...]:
    """What to spread over, most important first."""
    return (
        ("variant", config.variant),
        ("batch_size", config.batch_size),
        ("optimizer", config.optimizer),
        ("precision", config.precision),
    )


@dataclass(frozen=True, slots=True)
class Described:
    """A job that could be measured: where it lies among all jobs, and what measuring it costs."""

    config: JobConfig
    vector: Array
    seconds: float


def farthest_first(waiting: Sequence[Described], measured: Sequence[Array]) -> Iterator[Described]:
    """``waiting`` in the order that fills the space of jobs fastest.

    Each time the one that lies farthest from all before it, per second of measuring; with
    nothing measured yet the one nearest to the middle.

    References
    ----------
    Gonzalez: Clustering to minimize the maximum intercluster distance, 1985 (the traversal).
    """
    if not waiting:
        return
    vectors = np.stack([job.vector for job in waiting])
    seconds = np.array([job.seconds for job in waiting])
    left = np.ones(len(waiting), dtype=bool)
    if measured:
        nearest = distances(vectors, np.stack(measured)).min(axis=1)
    else:
        nearest = np.full(len(waiting), np.inf)
    while left.any():
        if np.isinf(nearest).all():
            score = -np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
        else:
            score = nearest / seconds
        best = int(np.argmax(np.where(left, score, -np.inf)))
        left[best] = False
        yield waiting[best]
        nearest = np.minimum(nearest, distances(vectors, vectors[best : best + 1])[:, 0])


def teaching_order(
    configs: Sequence[JobConfig],
    describe: Callable[[Sequence[JobConfig]], tuple[int, Sequence[Described]]],
    *,
    pool: int,
    measured: Sequence[Array],
) -> Iterator[Described]:
    """``configs`` by :func:`farthest_first`, ``pool`` of them at a time.

    Describing a job means tracing it, which is too slow for thousands when a few dozen will be
    measured. ``describe`` says how many of the first ones it has looked at, 1 at least, and
    describes those that can be measured.
    """
    waiting, chosen = list(configs), list(measured)
    while waiting:
        seen, described = describe(waiting[:pool])
        waiting = waiting[seen:]
        for job in farthest_first(described, chosen):
            chosen.append(job.vector)
            yield job


@dataclass(frozen=True, slots=True)
class Measured:
    """A job measured alone, as a possible member of a co-location."""

    vector: Array
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Sharing:
    """How co-locations are made.

    Attributes
    ----------
    sizes : mapping of int to float
        Weight of each number of members.
    modes : tuple of str
        Sharing modes, in turns; of "mps" each member gets a part, equal or not.
    undivided : Share
        What a member has where the device is not divided.
    """

    sizes: Mapping[int, float]
    modes: tuple[str, ...]
    undivided: Share


Drawn = tuple[tuple[str, ...], tuple[Share, ...]]  # members in sorted order, and their shares


def draw_colocations(
    measured: Mapping[str, Measured],
    device_kind: str,
    sharing: Sharing,
    *,
    capacity_bytes: int,
    seed: int,
    done: Sequence[Drawn] = (),
) -> Iterator[Drawn]:
    """Co-locations of jobs measured alone, none twice, until hardly any is left.

    Every job leads a co-location before any leads its second. Of some sets of partners drawn at
    random the one is taken that lies farthest from what was drawn before. ``done`` are those that
    need no more measuring: jobs that are in none of them lead first.
    """
    rng = random.Random(seed)  # noqa: S311
    jobs, misses, turn = sorted(measured), 0, len(done)
    drawn = {colocation_id(members, device_kind, shares) for members, shares in done}
    places = [_place(m, shares, measured) for m, shares in done if measured.keys() >= set(m)]
    met = {job for members, _ in done for job in members}
    fresh = [job for job in jobs if job not in met]
    leaders = rng.sample(fresh, len(fresh))
    while jobs and misses < MOST_MISSES:
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
        spots = [_place(members, shares, measured) for members, shares in candidates]
        best = _farthest(spots, places)
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
    """Shares of the members: a part each by MPS, in tenths of the device."""
    if mode != "mps":
        return (undivided,) * members
    if rng.random() < 0.5:
        return (Share(round(1 / members, 2), mode),) * members
    weights = [rng.randint(1, 8) for _ in range(members)]
    return tuple(Share(max(0.1, round(w / sum(weights), 1)), mode) for w in weights)


def _place(
    members: Sequence[str], shares: Sequence[Share], measured: Mapping[str, Measured]
) -> Array:
    """Where a co-location lies, whatever the order of its members."""
    vectors = np.stack([measured[job].vector for job in members])
    fractions = [share.fraction for share in shares]
    own = [3.0 * len(members), 8.0 * min(fractions), 8.0 * max(fractions)]
    return np.concatenate([vectors.mean(axis=0), np.ptp(vectors, axis=0), own])


def _farthest(spots: Sequence[Array], places: Sequence[Array]) -> int:
    if not places:
        return 0
    return int(np.argmax(distances(np.stack(spots), np.stack(places)).min(axis=1)))
