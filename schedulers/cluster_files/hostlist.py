"""Host names in the notation of Slurm's hostlists: ``n[00-31],login``."""

from __future__ import annotations

import re
from itertools import product

from presage.errors import ConfigError

MOST_NAMES = 65_536  # in one list: more is probably a typing error
_PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand_hostlist(text: str) -> list[str]:
    """Expand a hostlist into its names, in order.

    ``n[00-02,7]`` expands to n00, n01, n02 and n7: a number has as many digits as the first of its
    range. A name can have several brackets, and a list several names separated by commas.

    Raises
    ------
    ConfigError
        A bracket or range is invalid, or the list has more than ``MOST_NAMES`` names.
    """
    found: list[str] = []
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or not part[1].strip():
            raise ConfigError(
                f"{text!r} is not a hostlist at character {at + 1}; write it as n[00-31]"
            )
        found += _expand_name(part[1].strip(), MOST_NAMES - len(found))
        at = part.end()
    return found


def _expand_name(text: str, max_names: int) -> list[str]:
    """Expand one name, with or without brackets."""
    pieces = re.split(r"\[([^\[\]]*)\]", text)  # alternates text outside and inside brackets
    choices = [_expand_range(piece, text) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > max_names:
        raise ConfigError(f"{text!r} stands for more than {MOST_NAMES:,} names; split it")
    return ["".join(parts) for parts in product(*choices)]


def _expand_range(text: str, where: str) -> list[str]:
    """Expand the text inside brackets into numbers."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"{where!r}: {part!r} is not a number range; write it as 00-31")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ConfigError(f"{where!r}: {part!r} decreases; write the smaller number first")
        if int(last) - int(first) >= MOST_NAMES:
            raise ConfigError(f"{where!r} stands for more than {MOST_NAMES:,} names; split it")
        found += [str(i).zfill(len(first)) for i in range(int(first), int(last) + 1)]
    return found
