"""Normalization of the names that drivers and published tables give a device."""

from __future__ import annotations

import re
from typing import NamedTuple

# Makers, product lines and filler that do not identify a device. "quadro" does identify it: a
# Quadro RTX 6000 and an RTX 6000 of the Ada generation are different cards.
_FILLER = re.compile(
    r"\((?:r|tm)\)|@.*|\b\d+th gen\b|\b\d+[ -]core\b"
    r"|\b(?:nvidia|tesla|geforce|intel|amd|core|cpu|processor)\b"
)
_BARE_NUMBER = re.compile(r"(\d{4})((?:ti|super|tisuper)?)")
FIRST_RTX = 2000


def normalize_name(name: str) -> str:
    """Return the name in lower-case letters and digits, equal for all ways to write a device.

    "NVIDIA GeForce RTX 2080 Ti", "rtx2080ti" and "2080_Ti" all give "rtx2080ti": a bare number
    determines the series, because GeForce cards below 2000 are GTX.
    """
    words = _FILLER.sub(" ", name.lower().replace("_", " "))
    joined = re.sub(r"[^a-z0-9]", "", words)
    number = _BARE_NUMBER.fullmatch(joined)
    if number is None:
        return joined
    return f"{'rtx' if int(number[1]) >= FIRST_RTX else 'gtx'}{joined}"


# Parts of a name besides the card's model: its memory, its form, the generation of its memory.
_MEMORY = re.compile(r"(?<![\w.])(\d{1,3}) ?(?:gib|gb|g)(?![\w.])")
_FORM = re.compile(r"\b(sxm|pcie|nvl)\d?\b")
_MEMORY_KIND = re.compile(r"\bhbm\d?e?\b")


class NameParts(NamedTuple):
    """Parts of a device's name.

    Attributes
    ----------
    model : str
        The remaining name, as :func:`normalize_name` returns it.
    memory_gb : int or None
        Gigabytes; None if the name does not contain them.
    form : str
        "sxm", "pcie" or "nvl"; "" if the name does not contain one.
    """

    model: str
    memory_gb: int | None
    form: str


def parse_name(name: str) -> NameParts | None:
    """Return model, memory and form of a name in any order; None if one of them occurs twice."""
    text = re.sub(r"[_-]", " ", name.lower())
    sizes, forms = _MEMORY.findall(text), _FORM.findall(text)
    if len(sizes) > 1 or len(forms) > 1:
        return None
    model = normalize_name(_MEMORY_KIND.sub(" ", _FORM.sub(" ", _MEMORY.sub(" ", text))))
    return NameParts(model, int(sizes[0]) if sizes else None, forms[0] if forms else "")
