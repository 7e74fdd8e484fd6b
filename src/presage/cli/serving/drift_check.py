"""The check of ``presage drift``: outcomes of all logs against the forecasts of one release."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from presage.cli.serving.options import chosen_logs
from presage.errors import RegistryError

if TYPE_CHECKING:
    from presage.models.release.release import Release
    from presage.serving.outcomes.drift_watch import ReleaseOutcomes
    from presage.serving.outcomes.outcome_log import ReportedOutcome
    from presage.system.files.log_address import LogAddress

_BATCH = 256  # outcomes


def check_drift(
    logs: Sequence[str] | None, release: str, registry: str, false_alarm_outcomes: int
) -> ReleaseOutcomes:
    """Return the drift test after all outcomes of the logs.

    Raises
    ------
    PresageError
        A log, the registry or the release cannot be read.
    """
    from presage.models.drift.drift_test import DriftPolicy
    from presage.serving.outcomes.drift_watch import ReleaseOutcomes
    from presage.serving.outcomes.outcome_log import last_position, withdrawn_keys
    from presage.serving.predictor.predictor import Predictor
    from presage.system.text.progress import counted_progress

    found = chosen_logs(logs)
    with _loaded(release, registry) as loaded:
        checked = ReleaseOutcomes(Predictor(loaded), DriftPolicy(false_alarm_outcomes))
        for _, key in chain.from_iterable(map(withdrawn_keys, found)):
            checked.withdraw(key)
        rows = sum(map(last_position, found))
        with counted_progress(f"checking {rows:,} outcomes", rows) as step:
            each = _counted(_without_duplicates(found), step)
            while batch := list(islice(each, _BATCH)):
                checked.add(batch)
    return checked


@contextmanager
def _loaded(ref: str, registry: str) -> Iterator[Release]:
    """Yield the release that is named, else the one that `presage serve` serves."""
    from presage.models.registry.registry import Registry
    from presage.models.registry.uri import configured_uri
    from presage.models.release.release import load_release

    uri = registry or configured_uri()
    if ref and Path(ref).is_dir():
        yield load_release(Path(ref))
    elif ref:
        opened = Registry(uri)
        with TemporaryDirectory() as folder:
            version = opened.resolve(ref).version
            yield opened.download(version, Path(folder) / "release")
    else:
        yield load_release(_served_folder(uri, is_configured=not registry))


def _served_folder(uri: str, *, is_configured: bool) -> Path:
    from presage.models.registry.champion import fetch_champion, find_champion
    from presage.models.registry.uri import database_path
    from presage.models.release.pretrained import pretrained_release
    from presage.serving.predictor.release_follower import default_cache

    # The pretrained release is served only where this machine has no registry yet.
    database = database_path(uri)
    exists = not is_configured or database is None or database.exists()
    champion = find_champion(uri) if exists else None
    if champion is not None:
        return fetch_champion(uri, champion, default_cache())
    if not is_configured:
        raise RegistryError(f"{uri}: there is no champion; promote a release, or give --release")
    return pretrained_release()


def _without_duplicates(logs: Iterable[LogAddress]) -> Iterator[ReportedOutcome]:
    """Yield the outcomes of all logs in order of arrival; reports to two replicas count once."""
    from presage.serving.outcomes.outcome_log import read_outcomes

    keys: set[str] = set()
    for row in merge(*map(read_outcomes, logs), key=lambda row: row.received_at_unix_s):
        if row.idempotency_key not in keys:
            keys.add(row.idempotency_key)
            yield row


def _counted(
    rows: Iterable[ReportedOutcome], step: Callable[[], None]
) -> Iterator[ReportedOutcome]:
    for row in rows:
        step()
        yield row
