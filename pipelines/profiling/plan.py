"""What to measure, and in which order. Pure: the same arguments give the same plan."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from presage.pipelines.profiling.zoo import JobConfig

TRIPLES = 0.3  # of all co-locations; the others are pairs
REPEATS = 0.03  # chance that a further member is a copy of one that is there
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


def colocation_id(jobs: Sequence[str], device_kind: str) -> str:
    """Name of a co-location: its members in sorted order, and the device."""
    return f"{' + '.join(sorted(jobs))} @ {device_kind}"


def draw_colocations(
    measured: Collection[str], device_kind: str, *, seed: int, done: Collection[str] = ()
) -> Iterator[tuple[str, ...]]:
    """Co-locations of jobs measured alone, none twice, until hardly any is left.

    Every job leads a co-location before any leads its second; the other members are drawn at
    random. ``done`` are the ids of co-locations that need no more measuring.
    """
    rng = random.Random(seed)  # noqa: S311
    jobs, drawn, misses = sorted(measured), set(done), 0
    leaders: list[str] = []
    while jobs and misses < MOST_MISSES:
        if not leaders:
            leaders = rng.sample(jobs, len(jobs))
        members = _draw(leaders.pop(), jobs, rng)
        name = colocation_id(members, device_kind)
        if name in drawn:
            misses += 1
            continue
        misses = 0
        drawn.add(name)
        yield members


def _draw(leader: str, jobs: list[str], rng: random.Random) -> tuple[str, ...]:
    members = [leader]
    size = 3 if rng.random() < TRIPLES else 2
    while len(members) < size:
        others = [job for job in jobs if job not in members]
        repeat = not others or rng.random() < REPEATS
        members.append(rng.choice(members if repeat else others))
    return tuple(sorted(members))
