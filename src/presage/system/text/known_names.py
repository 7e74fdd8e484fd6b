"""Errors about unknown names: they suggest a similar known name, or list the known ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from presage.errors import ConfigError

_MAX_LISTED = 12


def check_known(given: Iterable[object], known: Collection[str], where: str) -> None:
    """Raise an error that begins with ``where`` if one of the ``given`` names is not known.

    Raises
    ------
    ConfigError
        Names the first unknown name and a similar known one.
    """
    for name in given:
        if name not in known:
            text = str(name) if str(name).isprintable() else repr(name)
            raise ConfigError(f"{where}{text} is not known; {did_you_mean(text, known)}")


def did_you_mean(
    name: str, known: Collection[str], *, most: int = 1, otherwise: str | None = None
) -> str:
    """Return the end of an error about an unknown name: "did you mean 'h200'?".

    Parameters
    ----------
    name : str
        The unknown name.
    known : collection of str
        Names that would have been accepted.
    most : int
        Maximum number of similar names to suggest.
    otherwise : str, optional
        Returned if no known name is similar; by default a list of known names.
    """
    similar = get_close_matches(name, known, n=most)
    if similar:
        return f"did you mean {' or '.join(map(repr, similar))}?"
    if otherwise is not None:
        return otherwise
    listed = ", ".join(list(filter(None, known))[:_MAX_LISTED])
    return f"known are {listed}{', ...' if len(known) > _MAX_LISTED else ''}"
