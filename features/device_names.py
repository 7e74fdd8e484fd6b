"""What drivers and published tables call a device, brought to one spelling."""

from __future__ import annotations

import re

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
