"""Shared registry on PostgreSQL and S3: restarted, and with a corrupt file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from presage.cli.app import app
from presage.errors import RegistryError, ReleaseError
from presage.features.placement import Placement
from presage.models.registry.champion import Champion, fetch_champion, find_champion
from presage.models.registry.registry import Registry
from presage.serving.client.client import PresageClient
from presage.serving.predictor.release_follower import RegistrySource
from presage.serving.server_options import Options
from tests.serving.conftest import STEP_FACTORS, column_times, make_models, make_release
from tests.serving.support.running_server import start_server
from tests.serving.support.shared_registry import SharedRegistry, shared_registry, what_is_missing
from tests.support.waiting import wait_until

MISSING = what_is_missing()
pytestmark = pytest.mark.skipif(
    bool(MISSING),
    reason=f"needs {MISSING}; pip install 'presage[shared-registry]', apt-get install postgresql",
)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """Releases whose step times are the roofline's times 1 and 2."""
    folder = tmp_path_factory.mktemp("releases")
    return [
        make_release(
            folder / f"times-{factor}",
            models=make_models()
            | {"step_time": column_times("roofline_s", tuple(factor * f for f in STEP_FACTORS))},
        )
        for factor in (1, 2)
    ]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, releases) -> Iterator[SharedRegistry]:
    """Registry with two releases, the first of which is champion."""
    with shared_registry(tmp_path_factory.mktemp("shared")) as server:
        registry = Registry(server.uri)
        for release in releases:
            registry.register(release, {"memory": {"mape": 1.0}})
        registry.promote(1)
        yield server


def models(shared: SharedRegistry, *words: str):
    """Return the parsed output of `presage models`."""
    done = CliRunner().invoke(app, ["models", *words, "--registry", shared.uri, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def champion_of(shared: SharedRegistry) -> Champion:
    champion = find_champion(shared.uri)
    assert champion is not None
    return champion


def test_a_release_is_listed_promoted_rolled_back_and_fetched(shared, releases, tmp_path):
    ids = [release.release_id for release in releases]
    assert [row["release_id"] for row in models(shared, "list")] == ids[::-1]
    assert Registry(shared.uri).register(releases[0], {}) == 1  # equal bytes, once

    assert (
        models(shared, "promote", "2", "--force", "--reason", "no gate here")["champion"][
            "release_id"
        ]
        == ids[1]
    )
    assert champion_of(shared).release_id == ids[1]
    assert models(shared, "rollback")["champion"]["release_id"] == ids[0]

    champion = champion_of(shared)
    assert champion.release_id == ids[0]
    folder = fetch_champion(shared.uri, champion, tmp_path / "cache")
    shown = models(shared, "show", "champion", "--download", str(tmp_path / "by-hand"))
    assert shown["manifest"]["release_id"] == ids[0]
    for path in releases[0].folder.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
        assert (tmp_path / "by-hand" / path.name).read_bytes() == path.read_bytes()
        assert any(
            key.endswith(f"/release/{path.name}") and content == path.read_bytes()
            for key, content in shared.files().items()
        )


def test_a_server_survives_the_loss_of_its_registry_and_follows_it_again(
    shared, releases, tmp_path, job, cpu
):
    source = RegistrySource(shared.uri, tmp_path / "cache")
    answers: list[str] = []
    failed: list[Exception] = []
    done = threading.Event()

    def ask(target: str) -> None:
        with PresageClient(target) as client:
            while not done.is_set():
                asked = job(f"job-{len(answers)}")
                try:
                    forecast = client.predict([Placement(asked, cpu)])[0]
                except Exception as error:
                    failed.append(error)
                    return
                answers.append(forecast.step_time_s.release_id)
                time.sleep(0.005)

    with start_server(source, Options(port=0, poll_s=0.1)) as server:
        asking = threading.Thread(target=ask, args=(server.target,))
        asking.start()
        try:
            wait_until(lambda: answers)
            shared.kill()
            with pytest.raises(RegistryError, match="cannot"):
                Registry(shared.uri).promote(2)
            before = len(answers)
            wait_until(lambda: len(answers) > before + 50, 30)
            shared.start()
            Registry(shared.uri).promote(2)
            wait_until(lambda: answers[-1] == releases[1].release_id, 30)
        finally:
            done.set()
            asking.join()
            Registry(shared.uri).rollback()
    assert not failed
    assert set(answers) == {release.release_id for release in releases}


def test_a_corrupt_file_is_rejected_and_the_old_release_stays(shared, releases, tmp_path, job, cpu):
    good, damaged = (release.release_id for release in releases)
    key = next(
        key
        for key, content in shared.files().items()
        if content == releases[1].model_path("step_time").read_bytes()
    )
    whole = shared.files()[key]
    registry = Registry(shared.uri)
    source = RegistrySource(shared.uri, tmp_path / "cache")
    with (
        start_server(source, Options(port=0, poll_s=0.1)) as server,
        PresageClient(server.target) as client,
    ):
        shared.put_file(key, whole[: len(whole) // 2])
        registry.promote(2)
        with pytest.raises(ReleaseError, match=rf"{damaged}.*step_time\.onnx"):
            fetch_champion(shared.uri, champion_of(shared), tmp_path / "other")
        with pytest.raises(ReleaseError, match=r"step_time\.onnx"):
            registry.download(2, tmp_path / "by-hand")
        assert not (tmp_path / "by-hand").exists()
        refused = server.metrics.registry.get_sample_value
        wait_until(lambda: refused("presage_releases_rejected_total"))
        assert client.predict([Placement(job("a"), cpu)])[0].step_time_s.release_id == good

        release = models(shared, "register", str(releases[1].folder))  # fixed in place
        assert release["version"] == 2
        assert shared.files()[key] == whole
        wait_until(lambda: client.release().release_id == damaged, 30)
        registry.rollback()
        wait_until(lambda: client.release().release_id == good)
