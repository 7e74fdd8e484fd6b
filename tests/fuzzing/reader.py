"""What a fuzzer needs to know of a reader: right inputs, how to change them, what it may say."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from presage.errors import PresageError


@dataclass(frozen=True, slots=True)
class Sample:
    """A file's content, and the end of its name, by which some readers choose a parser."""

    suffix: str
    content: bytes


def _whole(_sample: Sample) -> Iterator[Sample]:
    """A sample that is not made smaller."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Reader:
    """A part of Presage that reads bytes from outside.

    Attributes
    ----------
    seeds : callable
        Right inputs, on which changes begin.
    mutated : callable
        A changed sample; the samples after it lend their parts.
    read : callable
        Reads the file at a path, by the way that a user's file takes.
    refusals : tuple of type
        What it may raise. Anything else is a fault.
    smaller : callable
        Samples that say less than one that found a fault.
    """

    seeds: Callable[[], list[Sample]]
    mutated: Callable[[Sample, Sequence[Sample], random.Random], Sample]
    read: Callable[[Path], object]
    refusals: tuple[type[PresageError], ...]
    smaller: Callable[[Sample], Iterator[Sample]] = _whole
