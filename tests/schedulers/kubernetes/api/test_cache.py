"""A cache of a cluster knows what the API server has, whatever happens on the way."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from weakref import ref

import pytest

kubernetes = pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from urllib3.exceptions import HTTPError  # noqa: E402

from presage.schedulers.kubernetes.api.api_errors import ClusterError  # noqa: E402
from presage.schedulers.kubernetes.api.api_reader import ApiReader  # noqa: E402
from presage.schedulers.kubernetes.api.cache import Cache, Kind  # noqa: E402
from presage.schedulers.kubernetes.api.list_watch import list_all  # noqa: E402
from presage.schedulers.kubernetes.api.object_store import ObjectStore  # noqa: E402
from presage.schedulers.kubernetes.snapshot import Snapshot  # noqa: E402
from tests.schedulers.kubernetes.api_server.api_server import ApiServer  # noqa: E402
from tests.schedulers.kubernetes.api_server.object_store import Key  # noqa: E402
from tests.schedulers.kubernetes.manifests import (  # noqa: E402
    POD_GROUP_DEFINITION,
    node,
    pod,
    pod_group,
)

KINDS = 3


@pytest.fixture
def hasty(monkeypatch) -> None:
    """Failures are many and not waited for long."""
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache._MIN_BACKOFF_S", 0.002)
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache._MAX_BACKOFF_S", 0.05)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        yield server


@pytest.fixture
def cache(server) -> Iterator[Cache]:
    with following(server) as cache:
        yield cache


@contextmanager
def following(server: ApiServer, **options) -> Iterator[Cache]:
    """A cache that ends at once and leaves no thread behind."""
    with Cache(server.client(), **options) as cache:
        server.wait_for_watches(KINDS)
        yield cache
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 0.5
    assert not following_threads()


def following_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]


def label(value: object) -> dict:
    return {"metadata": {"labels": {"x": str(value)}}}


def settles(cache: Cache, is_so: Callable[[Snapshot], bool], timeout_s: float = 5.0) -> Snapshot:
    """The first snapshot of which that is true."""
    ends_s = time.monotonic() + timeout_s
    seen = cache.snapshot()
    while not is_so(seen):
        left_s = ends_s - time.monotonic()
        assert left_s > 0, f"still {seen}"
        cache.wait(seen.version, left_s)
        seen = cache.snapshot()
    return seen


def agrees(server: ApiServer) -> Callable[[Snapshot], bool]:
    """Whether a snapshot holds exactly what the server does."""

    def known(plural: str) -> list:
        return sorted(server.all(plural), key=lambda o: int(o["metadata"]["resourceVersion"]))

    def is_so(seen: Snapshot) -> bool:
        return all(
            sorted(mine.values(), key=lambda o: int(o["metadata"]["resourceVersion"]))
            == known(plural)
            for plural, mine in (
                ("nodes", seen.nodes),
                ("pods", seen.pods),
                ("podgroups", seen.pod_groups),
            )
        )

    return is_so


def test_on_entry_everything_is_there_without_managed_fields(server):
    server.create("pods", pod("a", namespace="kube-system", gpus=2))
    bare = server.get("pods", "a", "kube-system")
    fields = {"managedFields": [{"manager": "kubectl", "operation": "Update"}]}
    full = {**bare, "metadata": {**bare["metadata"], **fields}}
    full = server.registry.store.put(Key("", "pods", "kube-system", "a"), full)
    server.create("nodes", node("n"))
    server.create("podgroups", pod_group("g", 4))
    with following(server) as cache:
        seen = cache.snapshot()
    assert seen.nodes == {"n": server.get("nodes", "n")}
    assert seen.pod_groups == {("default", "g"): server.get("podgroups", "g")}
    del full["metadata"]["managedFields"]
    assert seen.pods == {("kube-system", "a"): full}


def test_every_change_is_seen_and_a_snapshot_stays_as_it_was(server, cache):
    empty = cache.snapshot()
    server.create("nodes", node("n"))
    server.create("pods", pod("a", gates=["presage.dev/gang"]))
    server.create("podgroups", pod_group("g", 4))
    first = settles(cache, agrees(server))
    server.change("pods", "a", label(1))
    server.set_phase("a", "Succeeded")
    server.change("nodes", "n", {"spec": {"unschedulable": True}})
    server.change("podgroups", "g", {"status": {"phase": "Running"}}, status=True)
    second = settles(cache, agrees(server))
    assert second.pods["default", "a"]["status"]["phase"] == "Succeeded"
    for plural, name in (("pods", "a"), ("nodes", "n"), ("podgroups", "g")):
        server.delete(plural, name)
    third = settles(cache, agrees(server))

    assert (empty.nodes, empty.pods, empty.pod_groups) == ({}, {}, {})
    assert (third.nodes, third.pods, third.pod_groups) == ({}, {}, {})
    assert (
        "labels" not in first.pods["default", "a"]["metadata"]
        or not first.pods["default", "a"]["metadata"]["labels"]
    )
    assert empty.version < first.version < second.version < third.version
    assert cache.snapshot() == third


def test_a_snapshot_of_what_did_not_change_shares_it(server, cache):
    server.create("nodes", node("n"))
    server.create("pods", pod("a"))
    before = settles(cache, agrees(server))
    server.create("pods", pod("b"))
    after = settles(cache, agrees(server))
    assert after.nodes is before.nodes
    assert after.pods["default", "a"] is before.pods["default", "a"]


def test_what_was_replaced_is_let_go(server, monkeypatch):
    listed: list[ref] = []

    class Item(dict):
        """Of which can be told whether anybody still has it."""

    def list_items(reader, resource):
        items, version = list_all(reader, resource)
        items = [Item(item) for item in items]
        listed.extend(map(ref, items))
        return items, version

    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache.list_all", list_items)
    server.create("pods", pod("a"))
    with following(server) as cache:
        assert listed[0]() is cache.snapshot().pods["default", "a"]
        server.change("pods", "a", label(1))
        settles(cache, agrees(server))
        assert listed[0]() is None


def test_lists_come_in_pages_and_an_expired_page_begins_anew(server, monkeypatch):
    for n in range(7):
        server.create("pods", pod(f"p-{n}"))
    monkeypatch.setattr("presage.schedulers.kubernetes.api.list_watch.PAGE_SIZE", 3)
    with following(server) as cache:
        assert agrees(server)(cache.snapshot())
    assert len(server.seen("list", "/pods$")) == 3

    server.requests.clear()
    forget = server.registry.list_of

    def forgetful(resource, namespace, query):
        if query.get("continue"):
            server.compact()
        return forget(resource, namespace, query)

    monkeypatch.setattr(server.registry, "list_of", forgetful)
    with following(server) as cache:
        assert agrees(server)(cache.snapshot())
    asked = [request.query for request in server.seen("list", "/pods$")]
    assert [("limit" in query, "continue" in query) for query in asked] == [
        (True, False), (True, True), (False, False),
    ]  # fmt: skip


def test_a_broken_watch_goes_on_where_it_was(server, cache):
    server.create("pods", pod("a"))
    settles(cache, agrees(server))
    server.requests.clear()
    server.drop_watches()
    server.create("pods", pod("b"))
    server.delete("pods", "a")
    settles(cache, agrees(server))
    server.wait_for_watches(KINDS)
    assert server.seen("list") == []


@pytest.mark.parametrize("form", ["in the stream", "at once"])
def test_a_forgotten_version_is_listed_anew_and_what_vanished_is_gone(server, cache, caplog, form):
    for name in ("a", "b"):
        server.create("pods", pod(name))
    server.create("podgroups", pod_group("g", 4))
    settles(cache, agrees(server))
    server.go_down()
    server.delete("pods", "a")
    server.delete("podgroups", "g")
    server.change("pods", "b", label(1))
    server.compact()
    server.come_up()
    if form == "at once":
        server.answer("watch", "/pods$", 410)
    seen = settles(cache, agrees(server))
    assert list(seen.pods) == [("default", "b")]
    assert len(server.seen("list", "/pods$")) == 1
    said = [record for record in caplog.records if record.fields["error"].startswith("410 ")]
    assert {record.fields["kind"] for record in said} == set(cache.lag_s())
    assert not any(record.exc_info for record in said)


def test_a_connection_that_always_breaks_is_not_waited_for_longer_and_longer(server, cache):
    began_s = time.monotonic()
    for n in range(9):
        server.wait_for_watches(KINDS)
        for plural, make in (("nodes", node), ("pods", pod)):
            server.create(plural, make(f"o-{n}"))
        server.create("podgroups", pod_group(f"o-{n}", 2))
        settles(cache, agrees(server))
        server.drop_watches()
    assert time.monotonic() - began_s < 3, "0.1 s each time; 25 s if the waits were doubled"


def test_after_a_bookmark_nothing_is_listed_anew(server, cache):
    server.create("nodes", node("n"))
    settles(cache, agrees(server))
    for n in range(5):
        server.create("events", event(n))  # of no kind that is watched
    version = str(server.version)
    asked_s = time.monotonic()
    server.send_bookmarks()
    while max(cache.lag_s().values()) >= time.monotonic() - asked_s:
        time.sleep(0.01)
    server.compact()
    server.requests.clear()
    server.drop_watches()
    server.create("pods", pod("a"))
    settles(cache, agrees(server))
    server.wait_for_watches(KINDS)
    assert server.seen("list") == []
    assert {request.query["resourceVersion"] for request in server.seen("watch")} == {version}


def event(n: int) -> dict:
    about = {"kind": "Pod", "namespace": "default", "name": "a"}
    return {"metadata": {"name": f"e-{n}"}, "reason": "Gated", "involvedObject": about}


def test_an_ended_watch_is_opened_again_without_a_pause(server, monkeypatch):
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache._MIN_BACKOFF_S", 9.0)
    with following(server, watch_timeout_s=1.0) as cache:
        time.sleep(1.2)
        server.create("pods", pod("a"))
        settles(cache, agrees(server), timeout_s=0.5)
        assert max(cache.lag_s().values()) < 1.3
    assert len(server.seen("list")) == KINDS
    assert len(server.seen("watch")) > KINDS


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_refuses_for_a_while_is_asked_again(server, hasty, code):
    server.create("pods", pod("a"))
    server.answer("list", "/pods$", code, times=2)
    server.answer("watch", "/nodes$", code)
    with following(server) as cache:
        assert agrees(server)(cache.snapshot())
        server.requests.clear()
        server.answer("watch", "", code, times=KINDS)
        server.drop_watches()
        server.create("nodes", node("n"))
        settles(cache, agrees(server))
        server.wait_for_watches(KINDS)
        assert server.seen("list") == [], "nothing was forgotten"


def test_a_mistake_of_our_own_is_logged_in_full_and_all_is_listed_anew(
    server, cache, caplog, monkeypatch
):
    tell = ObjectStore.apply_event

    def mistaken(known, event, told):
        monkeypatch.setattr(ObjectStore, "apply_event", tell)
        raise ZeroDivisionError

    monkeypatch.setattr(ObjectStore, "apply_event", mistaken)
    server.create("pods", pod("a"))
    settles(cache, agrees(server))
    (record,) = caplog.records
    assert record.fields["error"].startswith("ZeroDivisionError")
    assert record.exc_info[0] is ZeroDivisionError


def test_a_server_says_how_long_it_wants_to_be_left_alone(server, cache):
    server.answer("watch", "/pods$", 429, retry_after_s=1)
    server.requests.clear()
    server.drop_watches()
    time.sleep(0.8)
    assert len(server.seen("watch", "/pods$")) == 1
    server.wait_for_watches(KINDS)


def test_a_server_that_is_down_is_waited_for(server, cache):
    server.create("nodes", node("n"))
    settles(cache, agrees(server))
    server.go_down()
    server.create("pods", pod("a"))
    server.delete("nodes", "n")
    time.sleep(0.3)  # a last response may still be on its way
    lag_s = cache.lag_s()["Pod"]
    time.sleep(0.3)
    assert cache.lag_s()["Pod"] >= lag_s + 0.3
    assert set(cache.snapshot().nodes) == {"n"}, "what was known is known until there is news"
    server.come_up()
    settles(cache, agrees(server))
    server.wait_for_watches(KINDS)
    assert max(cache.lag_s().values()) < 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (401, "token or certificate"),
        (403, 'allow "list" and "watch" on "pods" of API group ""'),
        (404, "check that this is the address of an API server"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_what_waiting_does_not_mend_is_said_at_once(server, verb, code, words):
    server.answer(verb, "/pods$", code, times=9)
    with pytest.raises(ClusterError, match=words) as caught, Cache(server.client()):
        pass
    assert f"{server.url}/api/v1/pods: {code} refused on purpose; " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not following_threads()


def test_without_the_definition_of_pod_groups_it_says_what_to_apply():
    with (
        ApiServer() as server,
        pytest.raises(ClusterError, match=r"kubectl apply -f examples/kubernetes/pod_group_crd"),
        Cache(server.client()),
    ):
        pass


def test_who_cannot_be_reached_is_named():
    with ApiServer() as server:
        api = server.client()
    with (
        pytest.raises(ClusterError, match=r"refused.*check the address"),
        Cache(api, sync_timeout_s=0.3),
    ):
        pass


def test_an_own_write_is_seen_at_once_and_no_older_event_undoes_it(server, cache):
    first = server.create("pods", pod("a"))
    seen = settles(cache, agrees(server))
    server.delay("watch", "/pods$", 0.3)
    server.drop_watches()  # for 0.3 s nothing is told
    old = server.change("pods", "a", label(1))
    new = server.change("pods", "a", label(2))
    cache.put("Pod", new)
    assert cache.snapshot().pods["default", "a"] == new
    assert cache.snapshot().version > seen.version
    cache.put("Pod", old)
    cache.put("Pod", first)
    server.create("pods", pod("b"))
    versions = []
    while ("default", "b") not in (now := cache.snapshot()).pods:
        versions.append(now.pods["default", "a"])
        cache.wait(now.version, 5)
    assert all(known == new for known in versions)
    assert agrees(server)(cache.snapshot())


def test_a_deletion_that_was_told_is_not_undone_by_a_late_write(server, cache):
    server.create("pods", pod("a"))
    late = server.change("pods", "a", label(1))
    server.delete("pods", "a")
    server.create("pods", pod("b"))
    seen = settles(cache, lambda seen: ("default", "b") in seen.pods)
    cache.put("Pod", late)
    assert cache.snapshot() == seen
    assert agrees(server)(seen)


def test_many_wait_for_the_same_change(server, cache):
    version = cache.snapshot().version
    told: list[bool] = []
    waiting = [
        threading.Thread(target=lambda: told.append(cache.wait(version, 5))) for _ in range(8)
    ]
    for thread in waiting:
        thread.start()
    assert not cache.wait(version, 0.05)
    server.create("nodes", node("n"))
    for thread in waiting:
        thread.join()
    assert told == [True] * 8
    assert cache.wait(version, 0)


@pytest.mark.parametrize("how", ["list hangs", "watch hangs", "wants to be left alone"])
def test_it_ends_at_once_whatever_is_waited_for(server, how):
    with following(server) as cache:
        if how == "list hangs":
            server.answer("watch", "", 410, times=KINDS)
        if how == "wants to be left alone":
            server.answer("watch", "", 429, times=KINDS, retry_after_s=5)
        else:
            server.delay(how.split()[0], "", 3.0, times=KINDS)
        server.drop_watches()
        time.sleep(0.3)
        version = cache.snapshot().version
        told: list[bool] = []
        waiting = threading.Thread(target=lambda: told.append(cache.wait(version, 5)))
        waiting.start()
    waiting.join(0.5)
    assert told == [False]


def test_what_connects_while_it_ends_is_cut_as_well(server):
    reader = ApiReader(server.client())
    assert reader.get("/version", {}, read_timeout_s=1).status == 200
    reader.stop()
    with pytest.raises(HTTPError):
        reader.get("/version", {}, read_timeout_s=1)


def test_on_entry_a_server_that_hangs_is_given_up(server):
    server.delay("list", "/pods$", 5.0)
    began_s = time.monotonic()
    with (
        pytest.raises(ClusterError, match=r"pods: .*no response in 0.3 s"),
        following(server, sync_timeout_s=0.3),
    ):
        pass
    assert time.monotonic() - began_s < 1


def test_a_connection_without_a_word_is_given_up(server, monkeypatch):
    """A machine that lost its power resets no connection."""
    monkeypatch.setattr("presage.schedulers.kubernetes.api.list_watch.WATCH_GRACE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        api = server.client()
        with Cache(api, watch_timeout_s=0.3) as cache:
            host = api.configuration.host
            api.configuration.host = f"http://127.0.0.1:{mute.getsockname()[1]}"
            server.drop_watches()
            time.sleep(0.3)
            server.create("pods", pod("a"))
            api.configuration.host = host
            settles(cache, agrees(server))


@pytest.mark.parametrize("seed", range(3))
def test_after_anything_at_all_it_knows_what_the_server_has(server, hasty, seed):
    chance = random.Random(seed)
    made: dict[str, tuple[Kind, Callable[[str], dict]]] = {
        "nodes": ("Node", node),
        "pods": ("Pod", pod),
        "podgroups": ("PodGroup", lambda name: pod_group(name, 2)),
    }
    with following(server) as cache:
        versions = []
        for _ in range(150):
            plural, name = chance.choice([*made]), f"o-{chance.randrange(4)}"
            kind, make = made[plural]
            known = server.get(plural, name)
            match chance.randrange(12):
                case 0:
                    server.drop_watches()
                case 1:
                    server.compact()
                case 2:
                    server.send_bookmarks()
                case 3:
                    server.answer("watch", f"/{plural}$", chance.choice([410, 429, 500, 503]))
                case 4:
                    server.drop(chance.choice(["list", "watch"]), f"/{plural}$", "before")
                case 5:
                    time.sleep(chance.choice([0.0, 0.01, 0.05]))
                case 6 if known:
                    server.delete(plural, name)
                    cache.put(kind, known)  # late
                case _ if known is None:
                    server.create(plural, make(name))
                case _:
                    changed = server.change(plural, name, label(chance.random()))
                    if chance.random() < 0.5:
                        cache.put(kind, changed)
            versions.append(cache.snapshot().version)
        assert versions == sorted(versions)
        settles(cache, agrees(server), timeout_s=10)


def stored(name: str, version: int) -> dict:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


@given(
    writes=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=12),
    between=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=24),
)
def test_no_order_of_lists_events_and_own_writes_brings_the_old_back(writes, between):
    """Writes have versions 1, 2, ...; two lists or answers come before the event of each."""

    def state(version: int) -> dict[str, dict]:
        """What a list of that version says."""
        last = {name: (number, there) for number, (name, there) in enumerate(writes[:version], 1)}
        return {name: stored(name, number) for name, (number, there) in last.items() if there}

    known = ObjectStore(lambda o: o["metadata"]["name"])
    known.replace([], "0")
    shown = {"a": 0, "b": 0}

    def check() -> None:
        told, held = int(known.version), versions(known)
        for name in ("a", "b"):
            last = max((n for n, w in enumerate(writes[:told], 1) if w[0] == name), default=0)
            there = last > 0 and writes[last - 1][1]
            assert held.get(name, last + 1) > last or (there and held[name] == last)
            assert name in held or not there
            assert held.get(name, last) >= shown[name]
            shown[name] = held.get(name, last)

    doing = iter(between)
    for number, (name, there) in enumerate(writes, 1):
        for is_put, version in islice(doing, 2):
            if not is_put and version < number:
                known.replace(state(number - 1).values(), str(number - 1))
            elif is_put and 0 < version <= len(writes) and writes[version - 1][1]:
                known.put(stored(writes[version - 1][0], version))
                if version >= number:
                    assert versions(known)[writes[version - 1][0]] >= version
            check()
        known.apply_event("ADDED" if there else "DELETED", stored(name, number))
        check()
    assert dict(known.snapshot()) == state(len(writes))


def versions(known: ObjectStore) -> dict[str, int]:
    return {k: int(o["metadata"]["resourceVersion"]) for k, o in known.snapshot().items()}


def test_of_versions_that_are_no_numbers_the_watch_alone_is_believed():
    known = ObjectStore(lambda o: o["metadata"]["name"])
    first, second = ({"metadata": {"name": "a", "resourceVersion": v}} for v in ("x9", "x1"))
    known.replace([first], "x9")
    assert not known.put(second)
    assert known.apply_event("MODIFIED", second)
    assert (known.version, dict(known.snapshot())) == ("x1", {"a": second})
    assert known.apply_event("DELETED", first)
    assert not known.put(second)


def test_a_store_restored_from_a_backup_is_taken_as_it_is():
    known = ObjectStore(lambda o: o["metadata"]["name"])
    known.replace([stored("a", 90), stored("b", 91)], "100")
    assert not known.apply_event("BOOKMARK", {"metadata": {"resourceVersion": "101"}})
    assert known.replace([stored("a", 5)], "20")
    assert dict(known.snapshot()) == {"a": stored("a", 5)}
