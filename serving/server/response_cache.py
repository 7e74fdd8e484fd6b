"""Cache of recent responses, keyed by the serialized request.

A scheduler that scores nodes one by one sends the same job for each node and the same queue in
every pass. On devices of one kind these requests are the same bytes, and a release gives equal
responses to equal requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from presage.serving.predictor.predictor import Predictor

MAX_BYTES = 2 * 1024 * 1024  # requests and responses together: about a thousand of one job


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """Serialized response with the counts for metrics.

    Attributes
    ----------
    content : bytes
        The response.
    rows : int
        Number of rows that the request asked for.
    in_domain : mapping of str to (int, int)
        Per quantity, the numbers of forecasts in and out of domain.
    """

    content: bytes
    rows: int
    in_domain: Mapping[str, tuple[int, int]]


class ResponseCache:
    """Least recently used cache of the responses of one release, limited by bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._predictor: Predictor | None = None
        self._responses: OrderedDict[bytes, CachedResponse] = OrderedDict()
        self.size_bytes = 0

    def find(self, request: bytes, predictor: Predictor) -> CachedResponse | None:
        """Return the response of this release to the same request; None if it is not cached."""
        if self._predictor is not predictor:  # another release: drop the previous predictor
            self._predictor, self.size_bytes = predictor, 0
            self._responses.clear()
        found = self._responses.get(request)
        if found is not None:
            self._responses.move_to_end(request)
        return found

    def store(self, request: bytes, predictor: Predictor, response: CachedResponse) -> None:
        """Store a response of the release that the last :meth:`find` was called with."""
        if predictor is not self._predictor:
            return
        if request in self._responses:
            return
        self._responses[request] = response
        self.size_bytes += len(request) + len(response.content)
        while self.size_bytes > self._max_bytes:
            old_request, old = self._responses.popitem(last=False)
            self.size_bytes -= len(old_request) + len(old.content)
