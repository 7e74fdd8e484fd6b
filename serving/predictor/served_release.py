"""Served release and its replacement by another one.

A new release is loaded, checked, warmed up and compared with the previous one on its probes, all in
parallel with the calls. Then one assignment replaces the predictor. A call reads the predictor once
at its beginning, so that its response comes from one release.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from presage.errors import ReleaseError, ServiceError
from presage.models.release.release import Release, load_release
from presage.serving.predictor.corrections import Offsets
from presage.serving.predictor.prediction_backend import RefusedRelease
from presage.serving.predictor.predictor import Predictor
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import MAX_CHANGE


class Served:
    """Currently served release.

    Parameters
    ----------
    max_change : float
        Maximum factor between medians of a new release and the previous one, on any probe of the
        previous one.

    Attributes
    ----------
    refused : RefusedRelease or None
        Newer release that was rejected; None if there is none.
    """

    def __init__(self, metrics: Metrics, *, max_change: float = MAX_CHANGE) -> None:
        self._metrics = metrics
        self._max_change = max_change
        self._predictor: Predictor | None = None  # with offsets, if there are any
        self._released: Predictor | None = None
        self._replacing = threading.Lock()
        self.refused: RefusedRelease | None = None

    @property
    def released(self) -> Predictor:
        """Predictor of the served release without offsets. Raises as :attr:`predictor`."""
        return self._released or self.predictor

    @property
    def predictor(self) -> Predictor:
        """Predictor of the served release, with the offsets that were learned from outcomes.

        Raises
        ------
        ServiceError
            No release is loaded yet.
        """
        if self._predictor is None:
            raise ServiceError(
                "the release is still being loaded; retry in a second", retry_after_s=0.5
            )
        return self._predictor

    @property
    def is_ready(self) -> bool:
        """Whether a release is loaded."""
        return self._predictor is not None

    def offer(self, release: Release | Path) -> None:
        """Load, check and serve a release or the release in a folder.

        Raises
        ------
        ReleaseError
            The release is corrupt, cannot predict, or its predictions change by more than
            ``max_change``. The previous release is still served.
        """
        if isinstance(release, Path):
            release = load_release(release)
        before = self._released
        if before is not None and before.release_id == release.release_id:
            self.refused = None
            return
        predictor = Predictor(release)
        predictor.warm_up()
        predictor.check_probes()
        if before is not None:
            check_change(predictor, before, self._max_change)
        with self._replacing:
            self._predictor = self._released = predictor
        self.refused = None
        before_id = before.release_id if before else ""
        self._metrics.set_release(release.release_id, predictor.loaded_at_unix_s, before_id)
        log(logging.INFO, "serving", release_id=release.release_id, before=before_id)

    def correct(self, released: Predictor, offsets: Offsets) -> None:
        """Serve a release with offsets from now on, unless another one is served meanwhile."""
        corrected = released.with_offsets(offsets)
        with self._replacing:
            if self._released is released:
                self._predictor = corrected

    def refuse(self, error: ReleaseError, *, again: bool) -> None:
        """Record and log a rejected release; with ``again`` it is not counted a second time."""
        if self.refused is None or self.refused.reason != str(error):
            log(logging.ERROR, "release refused", reason=str(error))
        if not again:
            self._metrics.releases_refused.inc()
        self.refused = RefusedRelease(str(error), time.time())


def check_change(new: Predictor, before: Predictor, max_change: float) -> None:
    """Check that medians changed by at most a factor from the previous release.

    Raises
    ------
    ReleaseError
        A median changed by more; names the predictor and the factor.
    """
    for predictor, factor in new.changes(before).items():
        if factor > max_change:
            raise ReleaseError(
                f"{new.folder}: {predictor} of release {new.release_id} differs by a factor of "
                f"{factor:.3g} from release {before.release_id} on a probe and the limit is "
                f"{max_change:g}; evaluate the release, or raise --max-change"
            )
