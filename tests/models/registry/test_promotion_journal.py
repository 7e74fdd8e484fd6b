"""Promotion journal: concurrent changes, recovery from crashes, and changes made elsewhere."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient

from presage.errors import RegistryError
from presage.models.registry import promotion
from presage.models.registry import registry as registry_module
from presage.models.registry.champion import find_champion_id
from presage.models.registry.mlflow_connection import ModelClient
from presage.models.registry.promotion import commit_move
from presage.models.registry.promotion_journal import (
    GATE,
    NO_ENTRY,
    Entry,
    Move,
    select_moves,
    valid_entries,
)
from presage.models.registry.registry import KEPT_ENTRIES, Registry
from presage.models.release.release import load_release
from tests.models.mlflow_server import served
from tests.serving.support.shared_registry import shared_registry, what_is_missing

VERSIONS = 5
# Children of a process that has imported MLflow, which takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

JOURNAL = "presage-journal"


def model_client(uri: str) -> ModelClient:
    return ModelClient(MlflowClient(tracking_uri=uri, registry_uri=uri), "presage")


def entry(number: int, follows: int) -> Entry:
    move = Move(None, "", number, "", GATE, "", "", withdraws=False)
    values = {name: getattr(move, name) for name in Move.__dataclass_fields__}
    return Entry(**values, number=number, follows=follows, at="", created_ms=0, token="", done=True)


# First writer -----------------------------------------------------------------------------------


def test_of_two_entries_with_one_predecessor_the_smaller_number_is_valid():
    entries = [entry(1, 0), entry(3, 1), entry(2, 1), entry(4, 3), entry(5, 2)]

    assert [e.number for e in valid_entries(entries)] == [1, 2, 5]


@given(st.lists(st.integers(0, 12), max_size=12).map(lambda f: [*map(entry, range(1, 13), f)]))
def test_valid_entries_form_a_chain_that_later_entries_do_not_change(entries):
    chain = valid_entries(entries)

    assert [e.follows for e in chain] == [NO_ENTRY, *(e.number for e in chain)][: len(chain)]
    for known in range(len(entries) + 1):  # what a reader saw stays what it was
        last = valid_entries(entries[:known])
        assert last == chain[: len(last)]


# In a registry ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder_of_five(tmp_path_factory, empty_database, make_release) -> Path:
    """Registry with versions 1 to 5, of which 1 is the champion, next to the releases."""
    folder: Path = tmp_path_factory.mktemp("five") / "registry"
    shutil.copytree(empty_database.parent, folder)
    registry = Registry(f"sqlite:///{folder}/mlflow.db")
    for i in range(1, VERSIONS + 1):
        release = make_release(folder.parent / f"release-{i}", data_digest=f"{i}" * 64)
        assert registry.register(release, {}) == i
    registry.promote(1)
    return folder


@pytest.fixture
def five(tmp_path, folder_of_five) -> Registry:
    shutil.copytree(folder_of_five, tmp_path / "five")
    return Registry(f"sqlite:///{tmp_path}/five/mlflow.db")


@pytest.fixture(scope="module")
def server_uri(tmp_path_factory, empty_database) -> Iterator[str]:
    """URI of a server on a database and a folder."""
    folder = tmp_path_factory.mktemp("server") / "registry"
    shutil.copytree(empty_database.parent, folder)
    with served(folder) as uri:
        yield uri


@pytest.fixture(scope="module")
def team_uri(tmp_path_factory) -> Iterator[str]:
    """URI of a server on PostgreSQL and S3."""
    if missing := what_is_missing():
        pytest.skip(f"needs {missing}")
    with shared_registry(tmp_path_factory.mktemp("team")) as server:
        yield server.uri


@pytest.fixture(params=["a database", "server_uri", "team_uri"])
def shared(request, tmp_path, folder_of_five) -> str:
    """URI of a shared registry with five versions, of which 1 is the champion."""
    if request.param == "a database":
        shutil.copytree(folder_of_five, tmp_path / "shared")
        return f"sqlite:///{tmp_path}/shared/mlflow.db"
    uri: str = request.getfixturevalue(request.param)
    client = MlflowClient(tracking_uri=uri)
    for model in client.search_registered_models():  # of the test before
        client.delete_registered_model(model.name)
    registry = Registry(uri)
    for release in sorted(folder_of_five.parent.glob("release-*")):
        registry.register(load_release(release), {})
    registry.promote(1)
    return uri


def aliases(registry: Registry) -> dict[str, int]:
    return {alias: r.version for r in registry.versions() for alias in r.aliases}


def agree(registry: Registry) -> bool:
    """Return whether the alias, by both ways of reading it, is that of the last move."""
    last = select_moves(registry.journal())[-1]
    champion = registry.champion()
    assert champion is not None
    return (
        last.done
        and champion.version == last.to_version
        and (find_champion_id(registry.uri) == last.to_release)
    )


def test_every_change_is_an_entry_with_author_versions_and_reason(five):
    five.promote(2, reason="22 of 40 figures are better")
    five.promote(3, verdict="forced", reason="a customer waits", by="ada@lab")
    five.rollback(reason="it was slow")

    rows = [(e.verdict, e.from_version, e.to_version, e.reason) for e in five.journal()]
    assert rows == [
        ("gate", None, 1, ""),
        ("gate", 1, 2, "22 of 40 figures are better"),
        ("forced", 2, 3, "a customer waits"),
        ("rollback", 3, 2, "it was slow"),
    ]
    assert [e.by for e in five.journal()][2] == "ada@lab"
    assert all("@" in e.by and e.at.endswith("+00:00") and e.done for e in five.journal())
    assert aliases(five) == {"champion": 2, "previous": 3}
    assert five.resolve(3).withdrawn_at
    assert agree(five)


def test_an_outdated_decision_fails_and_names_the_winner(five):
    last = five.reconcile()
    five.promote(2, by="grace@lab", reason="better")

    with pytest.raises(RegistryError, match=r"first, by grace@lab at .*entry 2, gate: better"):
        five.promote(3, follows=last)
    assert aliases(five) == {"champion": 2, "previous": 1}

    # The same where both had looked before either wrote.
    client = model_client(five.uri)
    move = Move(1, "", 4, "", GATE, "", "", withdraws=False)
    with pytest.raises(RegistryError, match="first, by grace@lab"):
        commit_move(client, move, last)
    assert len(client.search_model_versions(f"name='{JOURNAL}'")) == 3
    assert len(five.journal()) == 2
    assert agree(five)


def test_an_entry_sent_twice_is_recognized_by_its_token(five, monkeypatch):
    create = MlflowClient.create_model_version

    def twice(self, name, *arguments, **options):
        if name == JOURNAL:
            create(self, name, *arguments, **options)
        return create(self, name, *arguments, **options)

    monkeypatch.setattr(MlflowClient, "create_model_version", twice)
    assert five.promote(2).version == 2
    assert len(five.journal()) == 2
    assert agree(five)


def together(*actions: Callable[[Barrier], str], folder: Path) -> list[str]:
    """Return the outputs of several processes that start at the same moment."""
    barrier = FORKS.Barrier(len(actions))
    processes = [
        FORKS.Process(target=_write_reply, args=(folder / f"said-{i}", action, barrier))
        for i, action in enumerate(actions)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        assert process.exitcode == 0
    return [(folder / f"said-{i}").read_text() for i in range(len(actions))]


def _write_reply(replies: Path, action: Callable[[Barrier], str], barrier: Barrier) -> None:
    replies.write_text(action(barrier))


def promote(uri: str, version: int, barrier: Barrier) -> str:
    registry = Registry(uri)
    last = registry.reconcile()
    barrier.wait(120)
    try:
        registry.promote(version, follows=last, by=f"process {version}")
    except RegistryError as error:
        return str(error)
    return "won"


def delete(uri: str, version: int, barrier: Barrier) -> str:
    registry = Registry(uri)
    registry.reconcile()
    barrier.wait(120)
    try:
        registry.delete(version)
    except RegistryError as error:
        return str(error)
    return "won"


def test_of_concurrent_promotions_one_wins_and_the_others_fail(shared, tmp_path):
    versions = range(2, VERSIONS + 1)
    rows = together(*(partial(promote, shared, version) for version in versions), folder=tmp_path)
    replies = dict(zip(versions, rows, strict=True))

    winners = [version for version, words in replies.items() if words == "won"]
    assert len(winners) == 1, replies
    for version in replies.keys() - set(winners):
        assert f"was made champion first, by process {winners[0]}" in replies[version], replies
    registry = Registry(shared)
    assert [e.to_version for e in registry.journal()] == [1, *winners]
    assert aliases(registry) == {"champion": winners[0], "previous": 1}
    assert agree(registry)


def _die(uri: str, step: str, method: str) -> None:
    setattr(promotion, step, lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL))
    options = {"by": "the one that died"} if method == "promote" else {}
    getattr(Registry(uri), method)(2, **options)


def die(uri: str, step: str, method: str = "promote") -> None:
    """Let a process promote or delete version 2, and be killed before a step of it."""
    process = FORKS.Process(target=_die, args=(uri, step, method))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("step", ["apply_entry", "mark_done"])
def test_the_next_process_applies_the_entry_of_a_killed_one(five, step):
    die(five.uri, step)
    moved = step == "mark_done"
    assert aliases(five) == ({"champion": 2, "previous": 1} if moved else {"champion": 1})
    assert not five.journal()[-1].done

    five.reconcile()

    assert aliases(five) == {"champion": 2, "previous": 1}
    assert [e.by for e in five.journal()][1:] == ["the one that died"]
    assert agree(five)


def test_a_promotion_after_a_killed_process_follows_its_entry(shared):
    die(shared, "apply_entry")
    registry = Registry(shared)
    registry.promote(3)

    assert [(e.from_version, e.to_version) for e in registry.journal()] == [
        (None, 1), (1, 2), (2, 3)
    ]  # fmt: skip
    assert aliases(registry) == {"champion": 3, "previous": 2}
    assert agree(registry)


def test_a_delayed_process_does_not_restore_an_old_champion(five):
    five.promote(2)
    five.promote(3)
    MlflowClient(tracking_uri=five.uri).set_registered_model_alias("presage", "champion", 2)
    five.reconcile()

    assert aliases(five) == {"champion": 3, "previous": 2}
    assert len(five.journal()) == 3


def test_a_move_without_presage_is_recorded_and_stays(five):
    client = MlflowClient(tracking_uri=five.uri)
    client.set_registered_model_alias("presage", "champion", 4)
    five.reconcile()

    last = five.journal()[-1]
    assert (last.verdict, last.from_version, last.to_version) == ("outside", 1, 4)
    assert aliases(five) == {"champion": 4, "previous": 1}
    assert five.rollback().version == 1

    client.delete_registered_model_alias("presage", "champion")
    five.reconcile()
    assert (five.journal()[-1].verdict, five.journal()[-1].to_version) == ("outside", None)
    assert five.champion() is None
    assert five.promote(2).version == 2
    assert agree(five)


def test_a_registry_without_a_journal_gets_one(five):
    client = MlflowClient(tracking_uri=five.uri)
    client.delete_registered_model(JOURNAL)
    assert five.journal() == []
    five.promote(2)

    rows = [(e.verdict, e.from_version, e.to_version) for e in five.journal()]
    assert rows == [("outside", None, 1), ("gate", 1, 2)]
    assert aliases(five) == {"champion": 2, "previous": 1}


def test_a_release_deleted_before_its_promotion_does_not_become_champion(five):
    die(five.uri, "apply_entry")
    MlflowClient(tracking_uri=five.uri).delete_model_version("presage", "2")
    five.reconcile()

    assert [(e.verdict, e.to_version) for e in five.journal()][1:] == [("gate", 2), ("outside", 1)]
    assert aliases(five)["champion"] == 1


# Deleting, and registering at once -------------------------------------------------------------


def test_versions_in_aliases_or_recent_entries_are_not_deleted(five):
    five.promote(2)
    five.set_challenger(3)
    for version, why in ((2, "alias champion, journal entry 2 refer"), (3, "alias challenger ")):
        with pytest.raises(RegistryError, match=why):
            five.delete(version)
    for i in range(KEPT_ENTRIES):
        five.promote(4 + i % 2)
        with pytest.raises(RegistryError, match=f"version {1 if i < KEPT_ENTRIES - 1 else 5} "):
            five.delete(1 if i < KEPT_ENTRIES - 1 else 5)

    run_id = five.delete(1).run_id
    assert [r.version for r in five.versions()] == [2, 3, 4, 5]
    assert MlflowClient(tracking_uri=five.uri).get_run(run_id).info.lifecycle_stage == "deleted"


def exists(registry: Registry, version: int, run_id: str) -> bool:
    """Return whether a version and its run exist; both or neither must."""
    run = MlflowClient(tracking_uri=registry.uri).get_run(run_id).info.lifecycle_stage
    found = version in [r.version for r in registry.versions()]
    assert found == (run == "active")
    return found


def just_before(monkeypatch, step: str, then) -> None:
    """Call ``then`` once, right before a step of :mod:`presage.models.registry.promotion`."""
    original = getattr(promotion, step)

    def later(*arguments):
        monkeypatch.setattr(promotion, step, original)
        then()
        return original(*arguments)

    monkeypatch.setattr(promotion, step, later)


def test_a_promotion_before_the_deletion_entry_prevents_the_deletion(five, monkeypatch):
    run_id = five.resolve(2).run_id
    just_before(monkeypatch, "append_entry", lambda: Registry(five.uri).promote(2, by="ada@lab"))

    with pytest.raises(RegistryError, match=r"was made champion first, by ada@lab .*entry 2, gate"):
        five.delete(2)
    assert exists(five, 2, run_id)
    assert aliases(five) == {"champion": 2, "previous": 1}
    assert agree(five)


def test_a_deletion_before_the_promotion_entry_prevents_the_promotion(five, monkeypatch):
    run_id = five.resolve(2).run_id
    just_before(monkeypatch, "append_entry", lambda: Registry(five.uri).delete(2))

    with pytest.raises(RegistryError, match=r"a version was deleted first, .*deletion: version 2 "):
        five.promote(2)
    assert not exists(five, 2, run_id)
    assert aliases(five) == {"champion": 1}
    assert agree(five)


def test_a_recorded_deletion_precedes_later_promotions(five, monkeypatch):
    run_id = five.resolve(2).run_id

    def others() -> None:
        other = Registry(five.uri)
        MlflowClient(tracking_uri=five.uri).set_registered_model_alias("presage", "champion", 4)
        with pytest.raises(RegistryError, match="no release '2'"):
            other.promote(2)
        other.promote(3)

    just_before(monkeypatch, "_delete", others)
    five.delete(2)  # its own hand comes late

    assert not exists(five, 2, run_id)
    rows = [(e.verdict, e.to_version, e.deletes, e.done) for e in five.journal()][1:3]
    assert rows == [("deletion", None, 2, True), ("outside", 4, None, True)]
    assert aliases(five) == {"champion": 3, "previous": 4}
    assert agree(five)


@pytest.mark.parametrize("step", ["_delete", "mark_done"])
def test_the_next_process_completes_the_deletion_of_a_killed_one(five, step):
    run_id = five.resolve(2).run_id
    die(five.uri, step, "delete")
    assert exists(five, 2, run_id) == (step == "_delete")

    with pytest.raises(RegistryError, match="no release '2'"):
        five.promote(2)
    assert not exists(five, 2, run_id)
    assert [e.done for e in five.journal()] == [True, True]
    assert aliases(five) == {"champion": 1}


def test_a_deletion_moves_no_alias_and_invalidates_no_earlier_decision(five):
    five.promote(2)
    five.promote(3)
    last = five.reconcile()
    five.delete(5)
    # A hand that comes late is corrected by the last move; the deletion says nothing of it.
    MlflowClient(tracking_uri=five.uri).set_registered_model_alias("presage", "champion", 2)
    five.reconcile()
    assert aliases(five) == {"champion": 3, "previous": 2}

    five.promote(4, follows=last)
    assert aliases(five) == {"champion": 4, "previous": 3}
    assert five.rollback().version == 3
    rows = [e.verdict for e in five.journal()]
    assert rows == ["gate", "gate", "gate", "deletion", "gate", "rollback"]
    assert agree(five)


def test_of_a_concurrent_promotion_and_deletion_one_happens(shared, tmp_path):
    run_id = Registry(shared).resolve(2).run_id
    replies = together(partial(promote, shared, 2), partial(delete, shared, 2), folder=tmp_path)

    won = [words == "won" for words in replies]
    assert sum(won) == 1, replies
    registry = Registry(shared)
    assert exists(registry, 2, run_id) == won[0]
    assert aliases(registry) == ({"champion": 2, "previous": 1} if won[0] else {"champion": 1})


def register(uri: str, folder: Path, barrier: Barrier) -> str:
    log_release = vars(registry_module)["log_release"]

    def slowly(*arguments: Any) -> Any:  # both have looked, neither has written
        vars(registry_module)["log_release"] = log_release
        run = log_release(*arguments)
        barrier.wait(60)
        return run

    vars(registry_module)["log_release"] = slowly
    return str(Registry(uri).register(load_release(folder), {}))


def test_concurrent_registrations_create_one_version(five, make_release, tmp_path):
    release = make_release(tmp_path / "release", data_digest="9" * 64)
    replies = together(*[partial(register, five.uri, release.folder)] * 2, folder=tmp_path)

    assert replies == ["6", "6"]
    assert [r.version for r in five.versions()] == [1, 2, 3, 4, 5, 6]
    assert five.download(6, tmp_path / "download").release_id == release.release_id
