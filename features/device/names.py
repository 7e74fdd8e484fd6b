"""What drivers and published tables call a device, brought to one spelling."""

from __future__ import annotations

import re
from typing import NamedTuple

# Makers, product lines and filler that say nothing about which device it is. "quadro" does: a
# Quadro RTX 6000 and an RTX 6000 of the Ada generation are two cards.
_FILLER = re.compile(
    r"\((?:r|tm)\)|@.*|\b\d+th gen\b|\b\d+[ -]core\b"
    r"|\b(?:nvidia|tesla|geforce|intel|amd|core|cpu|processor)\b"
)
_BARE_NUMBER = re.compile(r"(\d{4})((?:ti|super|tisuper)?)")
FIRST_RTX = 2000


def spelled(name: str) -> str:
    """One spelling for all ways to write a device: small letters and digits alone.

    "NVIDIA GeForce RTX 2080 Ti", "rtx2080ti" and "2080_Ti" are all "rtx2080ti": of a bare number
    the series is known, as GeForce cards below 2000 are GTX.
    """
    words = _FILLER.sub(" ", name.lower().replace("_", " "))
    joined = re.sub(r"[^a-z0-9]", "", words)
    number = _BARE_NUMBER.fullmatch(joined)
    if number is None:
        return joined
    return f"{'rtx' if int(number[1]) >= FIRST_RTX else 'gtx'}{joined}"


# What is said beside a card's model: its memory, its form, the generation of its memory.
_MEMORY = re.compile(r"(?<![\w.])(\d{1,3}) ?(?:gib|gb|g)(?![\w.])")
_FORM = re.compile(r"\b(sxm|pcie|nvl)\d?\b")
_MEMORY_KIND = re.compile(r"\bhbm\d?e?\b")


class NameParts(NamedTuple):
    """What a name says of a device.

    Attributes
    ----------
    model : str
        The rest of the name, as :func:`spelled`.
    memory_gb : int or None
        Gigabytes, None where the name does not say.
    form : str
        "sxm", "pcie", "nvl", or "" where the name does not say.
    """

    model: str
    memory_gb: int | None
    form: str


def parts_of(name: str) -> NameParts | None:
    """Return model, memory and form of a name in any order; None if it says one of them twice."""
    text = re.sub(r"[_-]", " ", name.lower())
    sizes, forms = _MEMORY.findall(text), _FORM.findall(text)
    if len(sizes) > 1 or len(forms) > 1:
        return None
    model = spelled(_MEMORY_KIND.sub(" ", _FORM.sub(" ", _MEMORY.sub(" ", text))))
    return NameParts(model, int(sizes[0]) if sizes else None, forms[0] if forms else "")
