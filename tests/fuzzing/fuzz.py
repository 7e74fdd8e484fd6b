"""Rounds of a fuzzer: change a right input, give it to its reader, keep what finds a fault."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzzing.guard import Guard, Outcome
from tests.fuzzing.reader import Reader, Sample
from tests.fuzzing.readers import READERS

_DONORS = 3
_MOST_TRIES = 400  # to make an input smaller
# Inputs to go on from: those that were refused in new words, and some that were read.
_POOL, _READ_KEPT, _FROM_POOL = 256, 0.05, 0.5
_MOST_KEPT_BYTES = 1 << 16


@dataclass
class Fault:
    """Something wrong, with the smallest input that shows it."""

    what: str
    said: str
    sample: Sample
    count: int = 1


@dataclass
class Tally:
    """What a reader made of all inputs."""

    reader: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    errors: set[str] = field(default_factory=set)  # different refusals, without their numbers
    faults: dict[str, Fault] = field(default_factory=dict)

    def count(self, sample: Sample, outcome: Outcome) -> None:
        """Take note of one input."""
        self.inputs += 1
        self.read += outcome.was_read
        self.refused += bool(outcome.said and not outcome.fault)
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        if not outcome.fault:
            return
        known = self.faults.get(outcome.fault)
        if known is None:
            self.faults[outcome.fault] = Fault(outcome.fault, outcome.said, sample)
            return
        known.count += 1
        if len(sample.content) < len(known.sample.content):
            known.sample, known.said = sample, outcome.said


def fuzz(
    name: str,
    *,
    most_inputs: int,
    most_s: float,
    seed: int,
    on_input: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Give a reader changed inputs, until there were enough or the time is over.

    What is refused in words that were not heard before, or takes another way to being read, goes
    back among the inputs that changes begin on.
    """
    reader, rng, tally = READERS[name], random.Random(seed), Tally(name)
    seeds = reader.seeds()
    pool = [*seeds]
    begin_s = time.monotonic()
    with Guard(name) as guard:
        while tally.inputs < most_inputs and time.monotonic() - begin_s < most_s:
            # As often from a right one: much of what was changed before is refused early.
            begun = pool if rng.random() < _FROM_POOL else seeds
            sample = _changed(reader, begun, pool, rng)
            outcome = guard.run(sample)
            if outcome.fault.startswith("hang"):  # or had the machine something else to do?
                outcome = guard.run(sample)
            tally.count(sample, outcome)
            words = _words(outcome.said)
            is_news = bool(words) and words not in tally.errors
            is_news |= outcome.was_read and rng.random() < _READ_KEPT
            if not outcome.fault and is_news and len(sample.content) < _MOST_KEPT_BYTES:
                at = len(pool) if len(pool) < _POOL else rng.randrange(len(seeds), _POOL)
                pool[at : at + 1] = [sample]
            if words and not outcome.fault:
                tally.errors.add(words)
            on_input(tally)
        for fault in tally.faults.values():
            _make_smaller(fault, reader, guard)
    tally.seconds = time.monotonic() - begin_s
    return tally


def _changed(reader: Reader, begun: list[Sample], pool: list[Sample], rng: random.Random) -> Sample:
    """A sample like one of those that changes begin on, with parts of others of the pool."""
    sample = rng.choice(begun)
    donors = [other for other in rng.choices(pool, k=_DONORS) if other.suffix == sample.suffix]
    return reader.mutated(sample, donors or [sample], rng)


def _words(said: str) -> str:
    """A refusal without what names one file's parts."""
    words = [w for w in said.split() if w.isalpha()]
    return " ".join(words[:12])


def _make_smaller(fault: Fault, reader: Reader, guard: Guard) -> None:
    """Leave out of a fault's input what it does not need, as long as that is quickly done."""
    if fault.what.startswith(("hang", "memory")):
        return
    tries = 0
    going_on = True
    while going_on:
        going_on = False
        for sample in reader.smaller(fault.sample):
            tries += 1
            if tries > _MOST_TRIES:
                return
            if len(sample.content) < len(fault.sample.content):
                outcome = guard.run(sample)
                if outcome.fault == fault.what:
                    fault.sample, fault.said, going_on = sample, outcome.said, True
                    break


def save(tally: Tally, folder: Path) -> Iterator[Path]:
    """Write the input of each fault into a folder of the reader's name."""
    for number, (_, fault) in enumerate(sorted(tally.faults.items())):
        path = folder / tally.reader / f"fault-{number}{fault.sample.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fault.sample.content)
        yield path
