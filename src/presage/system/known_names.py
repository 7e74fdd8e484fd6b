"""Names in a file that people write by hand: a slip is answered with the nearest known one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from presage.errors import ConfigError

_MOST_SHOWN = 12


def check_known(given: Iterable[object], known: Collection[str], where: str) -> None:
    """Every name is one of the known.

    Raises
    ------
    ConfigError
        Names the first that is not, and the nearest that is.
    """
    for one in given:
        if one not in known:
            said = str(one) if str(one).isprintable() else repr(one)
            raise ConfigError(f"{where}{said} is not known; {nearest(said, known)}")


def nearest(said: str, known: Collection[str]) -> str:
    """What could have been meant, as a part of a sentence."""
    near = get_close_matches(said, known, n=1)
    if near:
        return f"nearest is {near[0]!r}"
    some = ", ".join(list(known)[:_MOST_SHOWN])
    return f"known are {some}{', ...' if len(known) > _MOST_SHOWN else ''}"
