"""Answers of late, by the bytes that asked for them.

A scheduler that scores nodes one by one asks about the same job for each of them, and about the
same queue in every round; on devices of one kind these are the same bytes, and a release answers
equal bytes equally.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from presage.serving.predictor.predictor import Predictor

MOST_BYTES = 2 * 1024 * 1024  # of requests and answers together: about a thousand of one job


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and what is counted of it.

    Attributes
    ----------
    rows : int
        What was asked for.
    in_domain : mapping of str to (int, int)
        Of each quantity, forecasts that the release vouches for, and others.
    """

    content: bytes
    rows: int
    in_domain: Mapping[str, tuple[int, int]]


class Answers:
    """Those of one release; the one unasked for longest goes first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._of: Predictor | None = None
        self._known: OrderedDict[bytes, Answer] = OrderedDict()
        self.size_bytes = 0

    def find(self, request: bytes, predictor: Predictor) -> Answer | None:
        """The answer that this release gave to the same request."""
        if self._of is not predictor:  # and nobody keeps the one before
            self._of, self.size_bytes = predictor, 0
            self._known.clear()
        found = self._known.get(request)
        if found is not None:
            self._known.move_to_end(request)
        return found

    def keep(self, request: bytes, predictor: Predictor, answer: Answer) -> None:
        """Remember an answer of the release that was last asked of :meth:`find`."""
        if predictor is not self._of:
            return
        if request in self._known:
            return
        self._known[request] = answer
        self.size_bytes += len(request) + len(answer.content)
        while self.size_bytes > self._most_bytes:
            old, forgotten = self._known.popitem(last=False)
            self.size_bytes -= len(old) + len(forgotten.content)
