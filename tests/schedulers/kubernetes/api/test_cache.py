"""The cache matches the API server after faults of every kind."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from tests.support.waiting import wait_until as poll  # noqa: E402

KINDS = 3


@pytest.fixture
def short_backoff(monkeypatch) -> None:
    """Shorten the backoff, for tests with many failures."""
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache.MIN_BACKOFF_S", 0.002)
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache.MAX_BACKOFF_S", 0.05)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
        yield server


@pytest.fixture
def cache(server) -> Iterator[Cache]:
    with running_cache(server) as cache:
        yield cache


@contextmanager
def running_cache(server: ApiServer, **options) -> Iterator[Cache]:
    """Yield a synced cache; assert that it stops at once and leaves no thread."""
    with Cache(server.client(), **options) as cache:
        server.wait_for_watches(KINDS)
        yield cache
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 0.5
    assert not watch_threads()


def watch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]


def label_patch(value: object) -> dict:
    return {"metadata": {"labels": {"x": str(value)}}}


def wait_until(
    cache: Cache, condition: Callable[[Snapshot], bool], timeout_s: float = 5.0
) -> Snapshot:
    """Return the first snapshot that satisfies a condition."""
    ends_s = time.monotonic() + timeout_s
    snapshot = cache.snapshot()
    while not condition(snapshot):
        left_s = ends_s - time.monotonic()
        assert left_s > 0, f"still {snapshot}"
        cache.wait(snapshot.version, left_s)
        snapshot = cache.snapshot()
    return snapshot


def matches_server(server: ApiServer) -> Callable[[Snapshot], bool]:
    """Return a condition: the snapshot has exactly the objects of the server."""

    def sorted_objects(plural: str) -> list:
        return sorted(server.all(plural), key=lambda o: int(o["metadata"]["resourceVersion"]))

    def condition(snapshot: Snapshot) -> bool:
        return all(
            sorted(cached.values(), key=lambda o: int(o["metadata"]["resourceVersion"]))
            == sorted_objects(plural)
            for plural, cached in (
                ("nodes", snapshot.nodes),
                ("pods", snapshot.pods),
                ("podgroups", snapshot.pod_groups),
            )
        )

    return condition


def test_on_entry_all_objects_are_cached_without_managed_fields(server):
    server.create("pods", pod("a", namespace="kube-system", gpus=2))
    bare = server.get("pods", "a", "kube-system")
    fields = {"managedFields": [{"manager": "kubectl", "operation": "Update"}]}
    full = {**bare, "metadata": {**bare["metadata"], **fields}}
    full = server.registry.store.put(Key("", "pods", "kube-system", "a"), full)
    server.create("nodes", node("n"))
    server.create("podgroups", pod_group("g", 4))
    with running_cache(server) as cache:
        snapshot = cache.snapshot()
    assert snapshot.nodes == {"n": server.get("nodes", "n")}
    assert snapshot.pod_groups == {("default", "g"): server.get("podgroups", "g")}
    del full["metadata"]["managedFields"]
    assert snapshot.pods == {("kube-system", "a"): full}


def test_every_change_is_cached_and_snapshots_are_immutable(server, cache):
    empty = cache.snapshot()
    server.create("nodes", node("n"))
    server.create("pods", pod("a", gates=["presage.dev/gang"]))
    server.create("podgroups", pod_group("g", 4))
    first = wait_until(cache, matches_server(server))
    server.change("pods", "a", label_patch(1))
    server.set_phase("a", "Succeeded")
    server.change("nodes", "n", {"spec": {"unschedulable": True}})
    server.change("podgroups", "g", {"status": {"phase": "Running"}}, status=True)
    second = wait_until(cache, matches_server(server))
    assert second.pods["default", "a"]["status"]["phase"] == "Succeeded"
    for plural, name in (("pods", "a"), ("nodes", "n"), ("podgroups", "g")):
        server.delete(plural, name)
    third = wait_until(cache, matches_server(server))

    assert (empty.nodes, empty.pods, empty.pod_groups) == ({}, {}, {})
    assert (third.nodes, third.pods, third.pod_groups) == ({}, {}, {})
    assert (
        "labels" not in first.pods["default", "a"]["metadata"]
        or not first.pods["default", "a"]["metadata"]["labels"]
    )
    assert empty.version < first.version < second.version < third.version
    assert cache.snapshot() == third


def test_snapshots_share_unchanged_objects(server, cache):
    server.create("nodes", node("n"))
    server.create("pods", pod("a"))
    before = wait_until(cache, matches_server(server))
    server.create("pods", pod("b"))
    after = wait_until(cache, matches_server(server))
    assert after.nodes is before.nodes
    assert after.pods["default", "a"] is before.pods["default", "a"]


def test_replaced_objects_are_garbage_collected(server, monkeypatch):
    listed: list[ref] = []

    class Item(dict):
        """Dict that supports weak references."""

    def list_items(reader, resource):
        items, version = list_all(reader, resource)
        items = [Item(item) for item in items]
        listed.extend(map(ref, items))
        return items, version

    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache.list_all", list_items)
    server.create("pods", pod("a"))
    with running_cache(server) as cache:
        assert listed[0]() is cache.snapshot().pods["default", "a"]
        server.change("pods", "a", label_patch(1))
        wait_until(cache, matches_server(server))
        assert listed[0]() is None


def test_lists_are_paginated_and_restart_when_a_page_expires(server, monkeypatch):
    for n in range(7):
        server.create("pods", pod(f"p-{n}"))
    monkeypatch.setattr("presage.schedulers.kubernetes.api.list_watch.PAGE_SIZE", 3)
    with running_cache(server) as cache:
        assert matches_server(server)(cache.snapshot())
    assert len(server.requests_to("list", "/pods$")) == 3

    server.requests.clear()
    list_of = server.registry.list_of

    def list_and_compact(resource, namespace, query):
        if query.get("continue"):
            server.compact()
        return list_of(resource, namespace, query)

    monkeypatch.setattr(server.registry, "list_of", list_and_compact)
    with running_cache(server) as cache:
        assert matches_server(server)(cache.snapshot())
    queries = [request.query for request in server.requests_to("list", "/pods$")]
    assert [("limit" in query, "continue" in query) for query in queries] == [
        (True, False), (True, True), (False, False),
    ]  # fmt: skip


def test_a_broken_watch_resumes_without_a_list(server, cache):
    server.create("pods", pod("a"))
    wait_until(cache, matches_server(server))
    server.requests.clear()
    server.drop_watches()
    server.create("pods", pod("b"))
    server.delete("pods", "a")
    wait_until(cache, matches_server(server))
    server.wait_for_watches(KINDS)
    assert server.requests_to("list") == []


@pytest.mark.parametrize("form", ["in the stream", "at once"])
def test_an_expired_version_is_listed_again_and_deleted_objects_are_removed(
    server, cache, caplog, form
):
    for name in ("a", "b"):
        server.create("pods", pod(name))
    server.create("podgroups", pod_group("g", 4))
    wait_until(cache, matches_server(server))
    server.go_down()
    server.delete("pods", "a")
    server.delete("podgroups", "g")
    server.change("pods", "b", label_patch(1))
    server.compact()
    server.come_up()
    if form == "at once":
        server.fail_requests("watch", "/pods$", 410)
    snapshot = wait_until(cache, matches_server(server))
    assert list(snapshot.pods) == [("default", "b")]
    assert len(server.requests_to("list", "/pods$")) == 1
    records = [record for record in caplog.records if record.fields["error"].startswith("410 ")]
    assert {record.fields["kind"] for record in records} == set(cache.lag_s())
    assert not any(record.exc_info for record in records)


def test_backoff_does_not_grow_while_watches_make_progress(server, cache):
    began_s = time.monotonic()
    for n in range(9):
        server.wait_for_watches(KINDS)
        for plural, make in (("nodes", node), ("pods", pod)):
            server.create(plural, make(f"o-{n}"))
        server.create("podgroups", pod_group(f"o-{n}", 2))
        wait_until(cache, matches_server(server))
        server.drop_watches()
    assert time.monotonic() - began_s < 3, "0.1 s each time; 25 s with a growing backoff"


def test_after_a_bookmark_watches_resume_from_its_version(server, cache):
    server.create("nodes", node("n"))
    wait_until(cache, matches_server(server))
    for n in range(5):
        server.create("events", event(n))  # a kind that is not watched
    version = str(server.version)
    sent_s = time.monotonic()
    server.send_bookmarks()
    poll(lambda: max(cache.lag_s().values()) < time.monotonic() - sent_s)
    server.compact()
    server.requests.clear()
    server.drop_watches()
    server.create("pods", pod("a"))
    wait_until(cache, matches_server(server))
    server.wait_for_watches(KINDS)
    assert server.requests_to("list") == []
    assert {request.query["resourceVersion"] for request in server.requests_to("watch")} == {
        version
    }


def event(n: int) -> dict:
    regarding = {"kind": "Pod", "namespace": "default", "name": "a"}
    return {"metadata": {"name": f"e-{n}"}, "reason": "GatedCluster", "involvedObject": regarding}


def test_an_ended_watch_is_renewed_without_a_backoff(server, monkeypatch):
    monkeypatch.setattr("presage.schedulers.kubernetes.api.cache.MIN_BACKOFF_S", 9.0)
    with running_cache(server, watch_timeout_s=1.0) as cache:
        poll(lambda: len(server.requests_to("watch")) >= 2 * KINDS, 8.0)
        server.create("pods", pod("a"))
        wait_until(cache, matches_server(server), timeout_s=5.0)
        assert max(cache.lag_s().values()) < 5  # of a backoff of 9 s
    assert len(server.requests_to("list")) == KINDS
    assert len(server.requests_to("watch")) > KINDS


@pytest.mark.parametrize("code", [429, 500, 503])
def test_transient_errors_are_retried(server, short_backoff, code):
    server.create("pods", pod("a"))
    server.fail_requests("list", "/pods$", code, times=2)
    server.fail_requests("watch", "/nodes$", code)
    with running_cache(server) as cache:
        assert matches_server(server)(cache.snapshot())
        server.requests.clear()
        server.fail_requests("watch", "", code, times=KINDS)
        server.drop_watches()
        server.create("nodes", node("n"))
        wait_until(cache, matches_server(server))
        server.wait_for_watches(KINDS)
        assert server.requests_to("list") == [], "no version has expired"


def test_an_internal_error_is_logged_with_traceback_and_followed_by_a_list(
    server, cache, caplog, monkeypatch
):
    original = ObjectStore.apply_event

    def failing(store, event, obj):
        monkeypatch.setattr(ObjectStore, "apply_event", original)
        raise ZeroDivisionError

    monkeypatch.setattr(ObjectStore, "apply_event", failing)
    server.create("pods", pod("a"))
    wait_until(cache, matches_server(server))
    (record,) = caplog.records
    assert record.fields["error"].startswith("ZeroDivisionError")
    assert record.exc_info[0] is ZeroDivisionError


def test_retry_after_delays_the_next_request(server, cache):
    server.fail_requests("watch", "/pods$", 429, retry_after_s=1)
    server.requests.clear()
    server.drop_watches()
    poll(lambda: len(server.requests_to("watch", "/pods$")) == 2)
    rejected, repeated = server.requests_to("watch", "/pods$")
    assert repeated.received_s - rejected.received_s >= 1.0
    server.wait_for_watches(KINDS)


def test_the_cache_recovers_after_the_server_was_down(server, cache):
    server.create("nodes", node("n"))
    wait_until(cache, matches_server(server))
    server.go_down()
    server.create("pods", pod("a"))
    server.delete("nodes", "n")
    poll(lambda: cache.lag_s()["Pod"] >= 0.6)
    assert set(cache.snapshot().nodes) == {"n"}, "cached objects stay until there is an event"
    server.come_up()
    wait_until(cache, matches_server(server))
    server.wait_for_watches(KINDS)
    poll(lambda: max(cache.lag_s().values()) < 1)  # the last watch is answered a moment later


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (401, "token or certificate"),
        (403, 'allow "list" and "watch" on "pods" of API group ""'),
        (404, "check that this is the address of an API server"),
    ],
)
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_permanent_errors_are_raised_at_once(server, verb, code, message):
    server.fail_requests(verb, "/pods$", code, times=9)
    with pytest.raises(ClusterError, match=message) as caught, Cache(server.client()):
        pass
    assert f"{server.url}/api/v1/pods: {code} injected fault; " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not watch_threads()


def test_a_missing_pod_group_definition_is_reported_with_the_command_to_apply_it():
    with (
        ApiServer() as server,
        pytest.raises(ClusterError, match=r"kubectl apply -f examples/kubernetes/pod_group_crd"),
        Cache(server.client()),
    ):
        pass


def test_an_unreachable_server_is_named():
    with ApiServer() as server:
        api = server.client()
    with (
        pytest.raises(ClusterError, match=r"refused.*check the address"),
        Cache(api, sync_timeout_s=0.3),
    ):
        pass


def test_an_own_write_is_cached_at_once_and_not_undone_by_older_events(server, cache):
    first = server.create("pods", pod("a"))
    snapshot = wait_until(cache, matches_server(server))
    server.delay("watch", "/pods$", 0.3)
    server.drop_watches()  # no events for 0.3 s
    old = server.change("pods", "a", label_patch(1))
    new = server.change("pods", "a", label_patch(2))
    cache.put("Pod", new)
    assert cache.snapshot().pods["default", "a"] == new
    assert cache.snapshot().version > snapshot.version
    cache.put("Pod", old)
    cache.put("Pod", first)
    server.create("pods", pod("b"))
    versions = []
    while ("default", "b") not in (now := cache.snapshot()).pods:
        versions.append(now.pods["default", "a"])
        cache.wait(now.version, 5)
    assert all(known == new for known in versions)
    assert matches_server(server)(cache.snapshot())


def test_a_deletion_event_is_not_undone_by_a_late_write(server, cache):
    server.create("pods", pod("a"))
    late = server.change("pods", "a", label_patch(1))
    server.delete("pods", "a")
    server.create("pods", pod("b"))
    snapshot = wait_until(cache, lambda snapshot: ("default", "b") in snapshot.pods)
    cache.put("Pod", late)
    assert cache.snapshot() == snapshot
    assert matches_server(server)(snapshot)


def test_many_threads_can_wait_for_the_same_change(server, cache):
    version = cache.snapshot().version
    results: list[bool] = []
    waiting = [
        threading.Thread(target=lambda: results.append(cache.wait(version, 5))) for _ in range(8)
    ]
    for thread in waiting:
        thread.start()
    assert not cache.wait(version, 0.05)
    server.create("nodes", node("n"))
    for thread in waiting:
        thread.join()
    assert results == [True] * 8
    assert cache.wait(version, 0)


@pytest.mark.parametrize("how", ["list hangs", "watch hangs", "retry after"])
def test_the_cache_stops_at_once_during_any_request_or_wait(server, how):
    with running_cache(server) as cache:
        if how == "list hangs":
            server.fail_requests("watch", "", 410, times=KINDS)
        if how == "retry after":
            server.fail_requests("watch", "", 429, times=KINDS, retry_after_s=5)
        else:
            server.delay(how.split()[0], "", 3.0, times=KINDS)
        server.requests.clear()
        server.drop_watches()
        verb = "list" if how == "list hangs" else "watch"
        poll(lambda: len(server.requests_to(verb)) >= KINDS)
        version = cache.snapshot().version
        results: list[bool] = []
        waiting = threading.Thread(target=lambda: results.append(cache.wait(version, 5)))
        waiting.start()
    waiting.join(0.5)
    assert results == [False]


def test_a_stopped_reader_opens_no_connections(server):
    reader = ApiReader(server.client())
    assert reader.get("/version", {}, read_timeout_s=1).status == 200
    reader.stop()
    with pytest.raises(HTTPError):
        reader.get("/version", {}, read_timeout_s=1)


def test_entry_times_out_when_the_server_hangs(server):
    server.delay("list", "/pods$", 5.0)
    began_s = time.monotonic()
    with (
        pytest.raises(ClusterError, match=r"pods: .*no response in 0.3 s"),
        running_cache(server, sync_timeout_s=0.3),
    ):
        pass
    assert time.monotonic() - began_s < 1


def test_a_silent_connection_times_out(server, monkeypatch):
    """A machine without power does not reset connections."""
    monkeypatch.setattr("presage.schedulers.kubernetes.api.list_watch.WATCH_GRACE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        api = server.client()
        with Cache(api, watch_timeout_s=0.3) as cache:
            host = api.configuration.host
            api.configuration.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
            server.drop_watches()
            silent.settimeout(60)
            stack.enter_context(silent.accept()[0])  # a watch waits for its response there
            server.create("pods", pod("a"))
            api.configuration.host = host
            wait_until(cache, matches_server(server))


@pytest.mark.parametrize("seed", range(3))
def test_after_random_faults_the_cache_matches_the_server(server, short_backoff, seed):
    rng = random.Random(seed)
    made: dict[str, tuple[Kind, Callable[[str], dict]]] = {
        "nodes": ("Node", node),
        "pods": ("Pod", pod),
        "podgroups": ("PodGroup", lambda name: pod_group(name, 2)),
    }
    with running_cache(server) as cache:
        versions = []
        for _ in range(150):
            plural, name = rng.choice([*made]), f"o-{rng.randrange(4)}"
            kind, make = made[plural]
            known = server.get(plural, name)
            match rng.randrange(12):
                case 0:
                    server.drop_watches()
                case 1:
                    server.compact()
                case 2:
                    server.send_bookmarks()
                case 3:
                    server.fail_requests("watch", f"/{plural}$", rng.choice([410, 429, 500, 503]))
                case 4:
                    server.drop(rng.choice(["list", "watch"]), f"/{plural}$", "before")
                case 5:
                    time.sleep(rng.choice([0.0, 0.01, 0.05]))
                case 6 if known:
                    server.delete(plural, name)
                    cache.put(kind, known)  # a late response
                case _ if known is None:
                    server.create(plural, make(name))
                case _:
                    changed = server.change(plural, name, label_patch(rng.random()))
                    if rng.random() < 0.5:
                        cache.put(kind, changed)
            versions.append(cache.snapshot().version)
        assert versions == sorted(versions)
        wait_until(cache, matches_server(server), timeout_s=10)


def make_object(name: str, version: int) -> dict:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


@given(
    writes=st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=12),
    between=st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=24),
)
def test_no_order_of_lists_events_and_writes_restores_an_old_state(writes, between):
    """Writes have versions 1, 2, ...; up to two lists or responses precede each event."""

    def state(version: int) -> dict[str, dict]:
        """Return the objects of a list at a version."""
        last = {name: (number, there) for number, (name, there) in enumerate(writes[:version], 1)}
        return {name: make_object(name, number) for name, (number, there) in last.items() if there}

    store = ObjectStore(lambda o: o["metadata"]["name"])
    store.replace([], "0")
    shown = {"a": 0, "b": 0}

    def check() -> None:
        reported, stored = int(store.version), versions(store)
        for name in ("a", "b"):
            last = max((n for n, w in enumerate(writes[:reported], 1) if w[0] == name), default=0)
            there = last > 0 and writes[last - 1][1]
            assert stored.get(name, last + 1) > last or (there and stored[name] == last)
            assert name in stored or not there
            assert stored.get(name, last) >= shown[name]
            shown[name] = stored.get(name, last)

    doing = iter(between)
    for number, (name, there) in enumerate(writes, 1):
        for is_put, version in islice(doing, 2):
            if not is_put and version < number:
                store.replace(state(number - 1).values(), str(number - 1))
            elif is_put and 0 < version <= len(writes) and writes[version - 1][1]:
                store.put(make_object(writes[version - 1][0], version))
                if version >= number:
                    assert versions(store)[writes[version - 1][0]] >= version
            check()
        store.apply_event("ADDED" if there else "DELETED", make_object(name, number))
        check()
    assert dict(store.snapshot()) == state(len(writes))


def versions(store: ObjectStore) -> dict[str, int]:
    return {k: int(o["metadata"]["resourceVersion"]) for k, o in store.snapshot().items()}


def test_with_opaque_versions_only_the_watch_changes_the_store():
    store = ObjectStore(lambda o: o["metadata"]["name"])
    first, second = ({"metadata": {"name": "a", "resourceVersion": v}} for v in ("x9", "x1"))
    store.replace([first], "x9")
    assert not store.put(second)
    assert store.apply_event("MODIFIED", second)
    assert (store.version, dict(store.snapshot())) == ("x1", {"a": second})
    assert store.apply_event("DELETED", first)
    assert not store.put(second)


def test_a_list_from_a_restored_backup_replaces_everything():
    store = ObjectStore(lambda o: o["metadata"]["name"])
    store.replace([make_object("a", 90), make_object("b", 91)], "100")
    assert not store.apply_event("BOOKMARK", {"metadata": {"resourceVersion": "101"}})
    assert store.replace([make_object("a", 5)], "20")
    assert dict(store.snapshot()) == {"a": make_object("a", 5)}
