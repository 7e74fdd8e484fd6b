"""Names in the notation of Slurm's hostlists: ``n[00-31],login``."""

from __future__ import annotations

import re
from itertools import product

from presage.errors import ConfigError

MOST_NAMES = 65_536  # of one list: more is a slip of the keyboard
_PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def hosts(text: str) -> list[str]:
    """The names that a list stands for, in its order.

    ``n[00-02,7]`` are n00, n01, n02 and n7: a number has as many digits as the first of its
    range. A name can have several brackets, a list several names with commas between.

    Raises
    ------
    ConfigError
        A bracket or range is wrong, or stands for more than ``MOST_NAMES``.
    """
    found: list[str] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or not part[1].strip():
            raise ConfigError(
                f"{text!r} is no list of names at its character {at + 1}; write it as n[00-31]"
            )
        found += _names(part[1].strip(), MOST_NAMES - len(found))
        at = part.end()
    return found


def _names(text: str, most: int) -> list[str]:
    """Of one name, perhaps with brackets."""
    pieces = re.split(r"\[([^\[\]]*)\]", text)  # by turns outside of brackets and in them
    choices = [_numbers(one, text) if i % 2 else [one] for i, one in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > most:
        raise ConfigError(f"{text!r} stands for more than {MOST_NAMES:,} names; split it")
    return ["".join(one) for one in product(*choices)]


def _numbers(text: str, where: str) -> list[str]:
    """Of what is in brackets."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{where!r}: {part!r} is no range of numbers; write it as 00-31")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ConfigError(f"{where!r}: {part!r} falls; write the smaller number first")
        if int(last) - int(first) >= MOST_NAMES:
            raise ConfigError(f"{where!r} stands for more than {MOST_NAMES:,} names; split it")
        found += [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
    return found
