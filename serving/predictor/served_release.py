"""The release that answers, and how another one takes its place.

A release is loaded, checked, warmed up and asked what the one before it is known to answer, all
beside the calls; then one assignment puts it in place. A call takes the predictor once, at its
beginning, so that its answer comes wholly from one release.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from presage.errors import ReleaseError, ServiceError
from presage.models.release.release import Release, load_release
from presage.serving.predictor.forecasts import RefusedRelease
from presage.serving.predictor.predictor import Predictor
from presage.serving.server.log import log
from presage.serving.server.prometheus_metrics import Metrics
from presage.serving.server_options import MAX_CHANGE


class Served:
    """What is served now.

    Parameters
    ----------
    max_change : float
        Factor by which a new release's medians may differ from those of the one before it, on
        any of that one's probes.

    Attributes
    ----------
    refused : RefusedRelease or None
        The release that is to be served instead, and why it is not; None where there is none.
    """

    def __init__(self, metrics: Metrics, *, max_change: float = MAX_CHANGE) -> None:
        self._metrics = metrics
        self._max_change = max_change
        self._predictor: Predictor | None = None
        self.refused: RefusedRelease | None = None

    @property
    def predictor(self) -> Predictor:
        """Who answers.

        Raises
        ------
        ServiceError
            Nobody yet.
        """
        if self._predictor is None:
            raise ServiceError(
                "the release is still being loaded; ask again in a second", retry_after_s=0.5
            )
        return self._predictor

    @property
    def is_ready(self) -> bool:
        """Whether calls can be answered."""
        return self._predictor is not None

    def offer(self, release: Release | Path) -> None:
        """Serve another release, or the one at a folder, from now on.

        Raises
        ------
        ReleaseError
            It is damaged, cannot predict, or predicts something else altogether. What was served
            before still is.
        """
        if isinstance(release, Path):
            release = load_release(release)
        before = self._predictor
        if before is not None and before.release_id == release.release_id:
            self.refused = None
            return
        predictor = Predictor(release)
        predictor.warm_up()
        predictor.check_probes()
        if before is not None:
            check_change(predictor, before, self._max_change)
        self._predictor, self.refused = predictor, None
        before_id = before.release_id if before else ""
        self._metrics.set_release(release.release_id, predictor.loaded_at_unix_s, before_id)
        log(logging.INFO, "serving", release_id=release.release_id, before=before_id)

    def refuse(self, error: ReleaseError, *, again: bool) -> None:
        """Let it be seen that a release is not served, and why; one tried again counts once."""
        if self.refused is None or self.refused.reason != str(error):
            log(logging.ERROR, "release refused", reason=str(error))
        if not again:
            self._metrics.releases_refused.inc()
        self.refused = RefusedRelease(str(error), time.time())


def check_change(new: Predictor, before: Predictor, max_change: float) -> None:
    """Refuse a release whose medians are out of all proportion to those of the one before it.

    Raises
    ------
    ReleaseError
        Names the predictor and the factor.
    """
    for predictor, factor in new.changes(before).items():
        if factor > max_change:
            raise ReleaseError(
                f"{new.folder}: {predictor} of release {new.release_id} is off {factor:.3g} times "
                f"from what {before.release_id} answers to a probe, at most {max_change:g} times "
                "is let through; evaluate it, or serve it with --max-change"
            )
