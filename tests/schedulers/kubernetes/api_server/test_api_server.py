"""The fake API server behaves like a real one to the official client."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

kubernetes = pytest.importorskip(
    "kubernetes", reason="kubernetes is not installed: pip install 'presage[kubernetes]'"
)

from kubernetes import watch  # noqa: E402
from kubernetes.client import (  # noqa: E402
    ApiException,
    ApiextensionsV1Api,
    CoordinationV1Api,
    CoreV1Api,
    CustomObjectsApi,
    SchedulingV1Api,
    V1Lease,
    V1LeaseSpec,
    V1ObjectMeta,
)
from urllib3.exceptions import HTTPError  # noqa: E402

from tests.schedulers.kubernetes.api_server.api_server import ApiServer  # noqa: E402
from tests.schedulers.kubernetes.job_controller import JobController  # noqa: E402
from tests.schedulers.kubernetes.manifests import (  # noqa: E402
    POD_GROUP_DEFINITION,
    node,
    node_affinity,
    pod,
    pod_group,
)

GROUP = ("scheduling.x-k8s.io", "v1alpha1", "default", "podgroups")
MERGE = "application/merge-patch+json"
JSON = "application/json-patch+json"
GATE = "presage.dev/gang"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def core(server):
    return CoreV1Api(server.client(retries=False))


@pytest.fixture
def groups(server):
    server.create("customresourcedefinitions", POD_GROUP_DEFINITION)
    return CustomObjectsApi(server.client(retries=False))


def assert_error(code: int, reason: str, call: Callable, *args, **options) -> str:
    """Assert that a call fails with a code and reason; return the message."""
    with pytest.raises(ApiException) as caught:
        call(*args, **options)
    status = json.loads(caught.value.body)
    assert (caught.value.status, status["kind"], status["code"]) == (code, "Status", code)
    assert status["reason"] == reason
    return str(status["message"])


def bind(core, name, node_name, **metadata):
    body = {"metadata": {"name": name, **metadata}, "target": {"kind": "Node", "name": node_name}}
    # The response is a Status, which the client cannot parse as a Binding.
    return core.create_namespaced_pod_binding(name, "default", body, _preload_content=False)


def names(items) -> list[str]:
    return [item.metadata.name for item in items]


def test_a_created_pod_has_the_usual_defaults(server, core):
    created = core.create_namespaced_pod("default", pod("a", gpus=2))

    assert created.metadata.uid
    assert created.metadata.generation == 1
    assert created.metadata.resource_version == str(server.version)
    assert datetime.now(UTC) - created.metadata.creation_timestamp < timedelta(seconds=5)
    assert created.status.phase == "Pending"
    assert created.spec.scheduler_name == "default-scheduler"
    assert created.spec.termination_grace_period_seconds == 30
    # A request defaults to the limit, so that scheduling respects it.
    assert created.spec.containers[0].resources.requests["nvidia.com/gpu"] == "2"
    assert core.read_namespaced_pod("a", "default").to_dict() == created.to_dict()


def test_names_are_unique_in_a_namespace_and_can_be_generated(core):
    core.create_namespaced_pod("default", pod("a"))
    message = assert_error(409, "AlreadyExists", core.create_namespaced_pod, "default", pod("a"))
    assert message == 'pods "a" already exists'
    core.create_namespaced_pod("kube-system", pod("a", namespace="kube-system"))

    body = pod("")
    body["metadata"] = {"generateName": "train-"}
    created = [core.create_namespaced_pod("default", body).metadata.name for _ in range(20)]
    assert len(set(created)) == 20
    assert all(name.startswith("train-") and len(name) == 11 for name in created)


def test_invalid_objects_are_rejected_with_the_right_status(core):
    create = core.create_namespaced_pod
    assert_error(404, "NotFound", core.read_namespaced_pod, "a", "default")
    assert "namespaces" in assert_error(404, "NotFound", create, "no", pod("a", namespace="no"))
    assert_error(400, "BadRequest", create, "kube-system", pod("a"))
    assert_error(400, "BadRequest", create, "default", {**pod("a"), "spec": "no map"})
    assert_error(400, "BadRequest", create, "default", {**pod("a"), "kind": "Node"})
    assert_error(422, "Invalid", create, "default", pod("No_Name"))
    assert_error(422, "Invalid", create, "default", pod("a", labels={"job": "no label value!"}))
    assert_error(422, "Invalid", create, "default", pod("a", gates=(GATE, GATE)))
    assert_error(422, "Invalid", create, "default", pod("a", gates=[GATE], nodeName="n"))
    two_names = {"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}
    affinity = node_affinity({"matchFields": [two_names]})
    message = assert_error(422, "Invalid", create, "default", pod("a", affinity=affinity))
    assert "must be only one value" in message
    read = core.api_client.sanitize_for_serialization(create("default", pod("a")))
    read["metadata"]["name"] = "b"
    assert "resourceVersion should not be set" in assert_error(500, "", create, "default", read)


def test_a_stale_version_conflicts_and_an_unchanged_object_is_not_written(server, core):
    first = core.create_namespaced_pod("default", pod("a"))
    patch = {"metadata": {"labels": {"x": "1"}}}
    second = core.patch_namespaced_pod("a", "default", patch)
    assert int(second.metadata.resource_version) > int(first.metadata.resource_version)

    first.metadata.labels = {"x": "2"}
    message = assert_error(409, "Conflict", core.replace_namespaced_pod, "a", "default", first)
    assert "the object has been modified" in message
    patch["metadata"]["resourceVersion"] = first.metadata.resource_version
    assert_error(409, "Conflict", core.patch_namespaced_pod, "a", "default", patch)
    second.metadata.uid = "another"
    assert_error(409, "Conflict", core.replace_namespaced_pod, "a", "default", second)

    version = server.version
    same = core.read_namespaced_pod("a", "default")
    core.replace_namespaced_pod("a", "default", same)
    core.patch_namespaced_pod("a", "default", {"metadata": {"labels": {"x": "1"}}})
    assert server.version == version
    same.metadata.resource_version = None
    same.metadata.labels = {"x": "3"}
    assert core.replace_namespaced_pod("a", "default", same).metadata.labels == {"x": "3"}


def test_a_deletion_can_have_uid_and_version_preconditions(core):
    created = core.create_namespaced_pod("default", pod("a"))

    def delete(**preconditions):
        return core.delete_namespaced_pod("a", "default", body={"preconditions": preconditions})

    assert_error(409, "Conflict", delete, uid="another")
    assert_error(409, "Conflict", delete, uid=created.metadata.uid, resourceVersion="1")
    delete(uid=created.metadata.uid, resourceVersion=created.metadata.resource_version)
    assert_error(404, "NotFound", delete, uid=created.metadata.uid)


def test_json_patches_are_atomic(core):
    core.create_namespaced_pod("default", pod("a", gates=("a.b/1", "a.b/2")))
    path = "/spec/schedulingGates/0"

    def patch(*operations):
        return core.patch_namespaced_pod("a", "default", list(operations))

    patched = patch(
        {"op": "test", "path": f"{path}/name", "value": "a.b/1"},
        {"op": "remove", "path": path},
        {"op": "add", "path": "/metadata/annotations", "value": {}},
        {"op": "add", "path": "/metadata/annotations/x~1y", "value": "z"},
    )
    assert [gate.name for gate in patched.spec.scheduling_gates] == ["a.b/2"]
    assert patched.metadata.annotations == {"x/y": "z"}
    for failing in (
        {"op": "test", "path": f"{path}/name", "value": "a.b/1"},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
        {"op": "replace", "path": "/metadata/annotations/no", "value": "z"},
    ):
        renamed = {"op": "replace", "path": "/metadata/annotations/x~1y", "value": "changed"}
        assert_error(422, "Invalid", patch, renamed, failing)
    assert core.read_namespaced_pod("a", "default").metadata.annotations == {"x/y": "z"}


def test_strategic_patches_merge_lists_by_name_and_merge_patches_replace_them(core):
    core.create_namespaced_pod("default", pod("a", gates=("a.b/1", "a.b/2", "a.b/3")))

    def gates(patch, **options) -> list[str] | None:
        spec = {"spec": {"schedulingGates": patch}}
        patched = core.patch_namespaced_pod("a", "default", spec, **options)
        return [gate.name for gate in patched.spec.scheduling_gates or []]

    assert gates([]) == ["a.b/1", "a.b/2", "a.b/3"]
    assert gates([{"name": "a.b/2", "$patch": "delete"}]) == ["a.b/1", "a.b/3"]
    assert gates([{"name": "a.b/3"}], _content_type=MERGE) == ["a.b/3"]
    assert gates(None, _content_type=MERGE) == []


def test_custom_resources_do_not_support_strategic_patches(groups):
    created = groups.create_namespaced_custom_object(*GROUP, pod_group("g", 4))
    assert created["metadata"]["generation"] == 1
    patch = groups.patch_namespaced_custom_object
    strategic = "application/strategic-merge-patch+json"
    assert_error(
        415, "UnsupportedMediaType", patch, *GROUP, "g", {"spec": {}}, _content_type=strategic
    )
    assert patch(*GROUP, "g", {"spec": {"minMember": 2}})["metadata"]["generation"] == 2
    operations = [{"op": "replace", "path": "/spec/minMember", "value": 3}]
    assert patch(*GROUP, "g", operations, _content_type=JSON)["spec"]["minMember"] == 3
    created["spec"]["minMember"] = 5
    replace = groups.replace_namespaced_custom_object
    assert_error(409, "Conflict", replace, *GROUP, "g", created)
    del created["metadata"]["resourceVersion"]
    assert "must be specified" in assert_error(422, "Invalid", replace, *GROUP, "g", created)


def test_a_status_changes_only_through_its_subresource(server, core, groups):
    group = {**pod_group("g", 4), "status": {"phase": "Running"}}
    assert "status" not in groups.create_namespaced_custom_object(*GROUP, group)
    status = {"phase": "Scheduling", "scheduled": 4}
    patch = {"spec": {"minMember": 1}, "status": status}
    groups.patch_namespaced_custom_object_status(*GROUP, "g", patch)
    patch = {"spec": {"minMember": 1}, "status": {"phase": "Pending"}}
    patched = groups.patch_namespaced_custom_object(*GROUP, "g", patch)
    assert patched["status"] == status
    assert (patched["spec"], patched["metadata"]["generation"]) == ({"minMember": 1}, 2)

    core.create_namespaced_pod("default", pod("a"))
    core.patch_namespaced_pod("a", "default", {"status": {"phase": "Failed"}})
    change = {"spec": {"schedulerName": "no"}, "status": {"phase": "Running"}}
    running = core.patch_namespaced_pod_status("a", "default", change)
    assert (running.status.phase, running.spec.scheduler_name) == ("Running", "default-scheduler")


def test_undefined_resources_are_not_served(server):
    groups = CustomObjectsApi(server.client())
    assert_error(404, "NotFound", groups.list_namespaced_custom_object, *GROUP)
    definitions = ApiextensionsV1Api(server.client())
    created = definitions.create_custom_resource_definition(POD_GROUP_DEFINITION)
    assert [c.type for c in created.status.conditions] == ["NamesAccepted", "Established"]
    groups.create_namespaced_custom_object(*GROUP, pod_group("g", 4))
    assert groups.list_namespaced_custom_object(*GROUP)["kind"] == "PodGroupList"
    definitions.delete_custom_resource_definition(created.metadata.name)
    assert_error(404, "NotFound", groups.get_namespaced_custom_object, *GROUP, "g")


@pytest.mark.parametrize(
    ("labels", "fields", "found"),
    [
        ("job=a", "", ["a-0", "a-1"]),
        ("job!=a", "", ["b-0", "c-0"]),
        ("job in (a, b),rank=0", "", ["a-0", "b-0"]),
        ("job notin (a,b)", "", ["c-0"]),
        ("!job", "", ["c-0"]),
        ("job,rank!=0", "", ["a-1"]),
        ("", "spec.nodeName=n1", ["a-0"]),
        ("job=a", "spec.nodeName=", ["a-1"]),
        ("", "metadata.name!=c-0,spec.schedulerName=other", ["b-0"]),
        ("", "status.phase=Running", ["a-0"]),
        ("", "metadata.namespace=kube-system", ["d-0"]),
    ],
)
def test_lists_select_by_labels_and_fields(server, core, labels, fields, found):
    server.create("pods", pod("a-0", labels={"job": "a", "rank": "0"}, nodeName="n1"))
    server.create("pods", pod("a-1", labels={"job": "a", "rank": "1"}))
    server.create("pods", pod("b-0", labels={"job": "b", "rank": "0"}, schedulerName="other"))
    server.create("pods", pod("c-0"))
    server.create("pods", pod("d-0", namespace="kube-system", labels={"job": "d"}))
    server.set_phase("a-0", "Running")
    where = "kube-system" if found == ["d-0"] else "default"

    listed = core.list_namespaced_pod(where, label_selector=labels, field_selector=fields)

    assert names(listed.items) == found
    assert listed.metadata.resource_version == str(server.version)
    assert names(core.list_pod_for_all_namespaces().items)[-1] == "d-0"
    assert_error(400, "BadRequest", core.list_namespaced_pod, where, field_selector="spec.no=1")


def next_page(page) -> str | None:
    """Return the token for the next page, which the client names as the keyword ``continue``."""
    token: str | None = page.metadata._continue
    return token


def test_pages_are_consistent_and_expire(server, core):
    for number in range(5):
        server.create("pods", pod(f"a-{number}"))
    first = core.list_namespaced_pod("default", limit=2)
    server.delete("pods", "a-4")
    second = core.list_namespaced_pod("default", limit=2, _continue=next_page(first))
    third = core.list_namespaced_pod("default", limit=2, _continue=next_page(second))

    assert first.metadata.remaining_item_count == 3
    assert names([*first.items, *second.items, *third.items]) == [f"a-{n}" for n in range(5)]
    assert first.metadata.resource_version == third.metadata.resource_version
    assert next_page(third) is None
    server.compact()
    token = next_page(first)
    assert_error(410, "Expired", core.list_namespaced_pod, "default", limit=2, _continue=token)


def watch_events(core, **options) -> list[tuple[str, str, str]]:
    """Return type, name and version of events, up to the pod "end" or the end of the stream."""
    events = []
    for event in watch.Watch().stream(core.list_namespaced_pod, "default", **options):
        metadata = event["raw_object"]["metadata"]
        if metadata.get("name") == "end":
            break
        events.append((event["type"], metadata.get("name"), metadata["resourceVersion"]))
    return events


def test_a_watch_resumes_from_the_version_of_a_list(server, core):
    server.create("pods", pod("old"))
    version = core.list_namespaced_pod("default").metadata.resource_version
    server.create("pods", pod("a"))
    server.create("pods", pod("elsewhere", namespace="kube-system"))
    server.change("pods", "a", {"metadata": {"labels": {"x": "1"}}})
    changed = str(server.version)
    server.delete("pods", "a")
    server.create("nodes", node("n"))

    events = watch_events(core, resource_version=version, timeout_seconds=1)

    assert [event[:2] for event in events] == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"),
    ]  # fmt: skip
    versions = [int(event[2]) for event in events]
    assert versions == sorted(set(versions)), "a deletion has a version of its own"
    assert str(versions[1]) == changed


@pytest.mark.parametrize("version", [{}, {"resource_version": "0"}])
def test_a_watch_without_a_version_starts_with_existing_objects(server, core, version):
    server.create("pods", pod("b"))
    server.create("pods", pod("a"))
    server.change("pods", "b", {"metadata": {"labels": {"x": "1"}}})
    server.create("pods", pod("end"))
    assert [event[:2] for event in watch_events(core, **version)] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
    ]
    server.wait_for_watches(0)


def test_an_object_that_no_longer_matches_a_selector_is_reported_as_deleted(server, core):
    server.create("pods", pod("a", labels={"gang": "g"}))
    version = str(server.version)
    server.change("pods", "a", {"metadata": {"labels": {"gang": "h"}}})
    server.change("pods", "a", {"metadata": {"labels": {"rank": "0"}}})
    server.change("pods", "a", {"metadata": {"labels": {"gang": "g"}}})
    server.delete("pods", "a")
    server.create("pods", pod("end", labels={"gang": "g"}))

    events = watch_events(core, label_selector="gang=g", resource_version=version)
    assert [event[0] for event in events] == ["DELETED", "ADDED", "DELETED"]
    assert watch_events(core, field_selector="metadata.name=end", resource_version=version) == []


def test_open_watches_receive_new_events_and_bookmarks(server, core):
    received: list[tuple[str, str, str]] = []
    options = {"timeout_seconds": 1, "allow_watch_bookmarks": True}
    listener = threading.Thread(target=lambda: received.extend(watch_events(core, **options)))
    listener.start()
    server.wait_for_watches(1)
    server.create("pods", pod("a"))
    server.create("nodes", node("n"))
    server.send_bookmarks()
    server.create("pods", pod("b"))
    listener.join()

    assert [event[0] for event in received] == ["ADDED", "BOOKMARK", "ADDED", "BOOKMARK"]
    assert received[1][2] == server.get("nodes", "n")["metadata"]["resourceVersion"]
    assert received[3][2] == str(server.version)
    assert server.open_watches == 0


def test_a_watch_from_a_compacted_version_gets_expired(server, core):
    server.create("pods", pod("a"))
    version = str(server.version)
    server.change("pods", "a", {"metadata": {"labels": {"x": "1"}}})
    server.compact()
    with pytest.raises(ApiException) as caught:
        watch_events(core, resource_version=version, timeout_seconds=1)
    assert (caught.value.status, caught.value.reason.split(":")[0]) == (410, "Expired")

    with ApiServer(history_changes=3) as small:
        short = CoreV1Api(small.client())
        before = str(small.version)
        for name in ("a", "b", "c", "end"):
            small.create("pods", pod(name))
        with pytest.raises(ApiException):
            watch_events(short, resource_version=before, timeout_seconds=1)
        assert len(watch_events(short, resource_version=str(int(before) + 1))) == 2


def test_watch_events_in_order_give_the_same_state_as_a_list(server, core):
    """Four concurrent writers; each of two watchers maintains a copy."""
    version = core.list_namespaced_pod("default").metadata.resource_version
    copies: dict[str, dict[str, str]] = {"": {}, "x=1": {}}

    def follow(selector: str) -> None:
        last_version = 0
        options = {"resource_version": version, "timeout_seconds": 20}
        for event in watch.Watch().stream(
            core.list_namespaced_pod, "default", label_selector=selector, **options
        ):
            metadata = event["object"].metadata
            assert int(metadata.resource_version) > last_version
            last_version = int(metadata.resource_version)
            if metadata.name == "end":
                return
            if event["type"] == "DELETED":
                del copies[selector][metadata.name]
            else:
                assert (metadata.name in copies[selector]) == (event["type"] == "MODIFIED")
                copies[selector][metadata.name] = metadata.resource_version

    def write_randomly(seed: int) -> None:
        own, chance = CoreV1Api(server.client()), random.Random(seed)
        for _ in range(40):
            name = f"p-{chance.randrange(6)}"
            labels = {"metadata": {"labels": {"x": str(chance.randrange(2))}}}
            try:
                match chance.randrange(4):
                    case 0:
                        own.delete_namespaced_pod(name, "default")
                    case 1:
                        own.create_namespaced_pod("default", pod(name))
                    case _:
                        own.patch_namespaced_pod(name, "default", labels)
            except ApiException as error:
                assert error.status in (404, 409)

    watchers = [threading.Thread(target=follow, args=(selector,)) for selector in copies]
    writers = [threading.Thread(target=write_randomly, args=(seed,)) for seed in range(4)]
    for thread in [*watchers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    server.create("pods", pod("end", labels={"x": "1"}))
    for thread in watchers:
        thread.join()
    server.delete("pods", "end")
    for selector, copy in copies.items():
        listed = core.list_namespaced_pod("default", label_selector=selector).items
        assert copy == {item.metadata.name: item.metadata.resource_version for item in listed}


def test_gates_can_be_removed_but_not_added(core):
    created = core.create_namespaced_pod("default", pod("a", gates=("a.b/1", "a.b/2")))
    condition = created.status.conditions[0]
    assert (condition.type, condition.status) == ("PodScheduled", "False")
    assert condition.reason == "SchedulingGated"

    created.spec.scheduling_gates[0].name = "a.b/new"
    message = assert_error(422, "Invalid", core.replace_namespaced_pod, "a", "default", created)
    assert "only deletion is allowed" in message
    created.spec.scheduling_gates = None
    free = core.replace_namespaced_pod("a", "default", created)
    assert free.spec.scheduling_gates is None
    assert free.metadata.generation == 2
    free.spec.scheduling_gates = [{"name": "a.b/1"}]
    assert_error(422, "Invalid", core.replace_namespaced_pod, "a", "default", free)


def test_a_gated_pod_can_only_be_narrowed(server, core):
    core.create_namespaced_pod("default", pod("a", gates=[GATE], nodeSelector={"zone": "1"}))

    def change(spec, name="a"):
        return core.patch_namespaced_pod(name, "default", {"spec": spec}, _content_type=MERGE)

    change({"nodeSelector": {"kind": "h100"}})
    assert_error(422, "Invalid", change, {"nodeSelector": {"zone": "2"}})
    assert_error(422, "Invalid", change, {"nodeSelector": {"zone": None}})
    on_n1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    has_gpu = {"key": "gpu", "operator": "Exists"}
    change({"affinity": node_affinity({"matchFields": [on_n1]})})
    both = {"matchFields": [on_n1], "matchExpressions": [has_gpu]}
    change({"affinity": node_affinity(both)})
    on_n2 = {**on_n1, "values": ["n2"]}
    for wider in (
        node_affinity({"matchExpressions": [has_gpu]}),
        node_affinity({**both, "matchFields": [on_n2]}),
        node_affinity({**both, "matchFields": [on_n2, on_n1]}),  # additions come last
        node_affinity(both, {"matchFields": [on_n2]}),
        None,
    ):
        assert_error(422, "Invalid", change, {"affinity": wider})
    for other in ({"priority": 7}, {"schedulerName": "x"}, {"nodeName": "n1"}, {"hostname": "x"}):
        message = assert_error(422, "Invalid", change, other)
        assert "pod updates may not change fields other than" in message
    has = core.read_namespaced_pod("a", "default").spec.tolerations
    tolerations = core.api_client.sanitize_for_serialization(has)
    change({"tolerations": [*tolerations, {"key": "gpu", "operator": "Exists"}]})
    assert_error(422, "Invalid", change, {"tolerations": tolerations})
    change({"schedulingGates": None})
    assert_error(422, "Invalid", change, {"nodeSelector": {"more": "1"}})
    assert_error(422, "Invalid", change, {"affinity": node_affinity({**both, "matchFields": []})})


def test_only_ungated_pods_can_be_bound_and_only_once(server, core):
    server.create("pods", pod("gated", gates=[GATE]))
    with pytest.raises(ApiException, match=r"non-empty \.spec\.schedulingGates") as caught:
        bind(core, "gated", "n1")
    assert caught.value.status == 409

    created = core.create_namespaced_pod("default", pod("a", annotations={"x": "1"}))
    with pytest.raises(ApiException, match="Precondition failed: UID"):
        bind(core, "a", "n1", uid="of the one before")
    answer = bind(core, "a", "n1", uid=created.metadata.uid, annotations={"devices": "0,1"})
    assert (answer.status, json.loads(answer.data)["status"]) == (201, "Success")
    bound = core.read_namespaced_pod("a", "default")
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations == {"x": "1", "devices": "0,1"}
    assert [(c.type, c.status) for c in bound.status.conditions] == [("PodScheduled", "True")]
    with pytest.raises(ApiException, match="already assigned to node"):
        bind(core, "a", "n2")
    core.delete_namespaced_pod("a", "default")
    with pytest.raises(ApiException, match="is being deleted"):
        bind(core, "a", "n2")
    with pytest.raises(ApiException) as caught:
        bind(core, "no", "n1")
    assert caught.value.status == 404


def test_a_running_pod_terminates_within_its_grace_period(server, core):
    server.create("pods", pod("waiting"))
    deleted = core.delete_namespaced_pod("waiting", "default")
    assert deleted.metadata.name == "waiting"
    assert server.get("pods", "waiting") is None

    for name in ("running", "evicted", "killed"):
        server.create("pods", pod(name, nodeName="n1"))
    terminating = core.delete_namespaced_pod("running", "default", grace_period_seconds=20)
    assert terminating.metadata.deletion_grace_period_seconds == 20
    again = core.delete_namespaced_pod("running", "default", grace_period_seconds=40)
    assert again.metadata.deletion_timestamp == terminating.metadata.deletion_timestamp
    server.finish("running")
    assert server.get("pods", "running") is None

    eviction = {"metadata": {"name": "evicted"}}
    core.create_namespaced_pod_eviction("evicted", "default", eviction, _preload_content=False)
    assert server.get("pods", "evicted")["metadata"]["deletionGracePeriodSeconds"] == 30
    core.delete_namespaced_pod("killed", "default", grace_period_seconds=0)
    assert names(core.list_namespaced_pod("default").items) == ["evicted"]


def test_finalizers_delay_a_deletion_until_they_are_removed(server, core, groups):
    group = pod_group("g", 4)
    group["metadata"]["finalizers"] = ["presage.dev/gang"]
    groups.create_namespaced_custom_object(*GROUP, group)
    terminating = groups.delete_namespaced_custom_object(*GROUP, "g")
    assert terminating["metadata"]["deletionTimestamp"]
    patch = groups.patch_namespaced_custom_object
    more = {"metadata": {"finalizers": ["presage.dev/gang", "presage.dev/more"]}}
    assert_error(422, "Invalid", patch, *GROUP, "g", more)
    patch(*GROUP, "g", {"metadata": {"finalizers": None}})
    assert server.get("podgroups", "g") is None


def test_only_one_concurrent_lease_renewal_succeeds(server):
    leases = CoordinationV1Api(server.client(retries=False))
    now = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    spec = V1LeaseSpec(holder_identity="a", lease_duration_seconds=15, renew_time=now)
    lease = V1Lease(metadata=V1ObjectMeta(name="gate"), spec=spec)
    created = leases.create_namespaced_lease("default", lease)
    assert created.spec.renew_time == now

    winners: list[str] = []

    def take(holder: str) -> None:
        client = CoordinationV1Api(server.client(retries=False))
        body = client.read_namespaced_lease("gate", "default")
        barrier.wait()
        body.spec.holder_identity = holder
        try:
            client.replace_namespaced_lease("gate", "default", body)
        except ApiException as error:
            assert error.status == 409
        else:
            winners.append(holder)

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=take, args=(f"holder-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [leases.read_namespaced_lease("gate", "default").spec.holder_identity] == winners

    # Go cannot parse these as MicroTime: a whole second, and a time without a zone.
    lease.metadata.name = "other"
    for invalid_time in (now.replace(microsecond=0), now.replace(tzinfo=None)):
        lease.spec.renew_time = invalid_time
        assert_error(400, "BadRequest", leases.create_namespaced_lease, "default", lease)
    lease.spec.renew_time = None
    leases.replace_namespaced_lease("other", "default", lease)  # a PUT creates a lease
    assert_error(422, "Invalid", leases.replace_namespaced_lease, "other", "default", lease)


def test_a_node_keeps_its_status_when_it_is_cordoned(server, core):
    server.create("nodes", node("n", gpus=4))
    cordoned = core.read_node("n")
    cordoned.spec.unschedulable = True
    cordoned.status.allocatable = {}
    cordoned = core.replace_node("n", cordoned)
    assert cordoned.spec.unschedulable
    assert cordoned.status.allocatable["nvidia.com/gpu"] == "4"
    assert names(core.list_node(field_selector="spec.unschedulable=true").items) == ["n"]
    assert core.patch_node("n", {"spec": {"unschedulable": False}}).spec.unschedulable is None
    not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    (condition,) = core.patch_node_status("n", not_ready).status.conditions
    assert condition.status == "False"


def test_a_kubeconfig_file_configures_a_client(server, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig()))
    with kubernetes.config.new_client_from_config(str(path)) as client:
        assert kubernetes.client.VersionApi(client).get_code().minor == "36"
        assert names(CoreV1Api(client).list_namespace(limit=1).items) == ["default"]


def test_priorities_come_from_classes_and_events_share_their_object_s_namespace(server, core):
    classes = SchedulingV1Api(server.client())
    classes.create_priority_class({"metadata": {"name": "urgent"}, "value": 1000})
    created = core.create_namespaced_pod("default", pod("a", priorityClassName="urgent"))
    assert created.spec.priority == 1000
    assert_error(403, "Forbidden", core.create_namespaced_pod, "default", pod("b", priority=9))
    assert_error(
        403, "Forbidden", core.create_namespaced_pod, "default", pod("b", priorityClassName="x")
    )

    about = {"kind": "Pod", "namespace": "default", "name": "a", "uid": created.metadata.uid}
    event = {"metadata": {"generateName": "a."}, "reason": "GatedCluster", "involvedObject": about}
    core.create_namespaced_event("default", event)
    assert_error(422, "Invalid", core.create_namespaced_event, "kube-system", event)
    fields = "involvedObject.name=a,reason=GatedCluster"
    assert len(core.list_event_for_all_namespaces(field_selector=fields).items) == 1


def test_after_a_broken_connection_a_write_may_or_may_not_be_done(server, core):
    server.drop("POST", "/pods$", "before")
    server.drop("create", "/pods$", "after")
    with pytest.raises(HTTPError):
        core.create_namespaced_pod("default", pod("a"))
    assert server.get("pods", "a") is None
    with pytest.raises(HTTPError):
        core.create_namespaced_pod("default", pod("a"))
    assert server.get("pods", "a") is not None
    assert_error(409, "AlreadyExists", core.create_namespaced_pod, "default", pod("a"))
    server.drop("create", "/pods$", "after")
    with pytest.raises(HTTPError):
        core.create_namespaced_pod("default", pod("a"))
    assert [request.verb for request in server.requests_to("POST")] == ["create"] * 4


def test_injected_errors_and_retries_of_the_client(server, core):
    server.fail_requests("PATCH", "/pods/a$", 409, times=2)
    server.create("pods", pod("a"))
    patch = {"metadata": {"labels": {"x": "1"}}}
    for _ in range(2):
        assert_error(409, "Conflict", core.patch_namespaced_pod, "a", "default", patch)
    core.patch_namespaced_pod("a", "default", patch)

    server.fail_requests("*", "/pods/a", 500)
    assert_error(500, "InternalError", core.read_namespaced_pod, "a", "default")
    server.fail_requests("get", "/pods/a", 429, retry_after_s=0)
    with pytest.raises(ApiException) as caught:
        core.read_namespaced_pod("a", "default")
    assert caught.value.headers["Retry-After"] == "0"
    server.delay("get", "/pods/a", 0.2)
    began_s = time.monotonic()
    core.read_namespaced_pod("a", "default")
    assert time.monotonic() - began_s >= 0.2

    # urllib3 retries idempotent requests, which excludes PATCH.
    usual = CoreV1Api(server.client())
    server.requests.clear()
    server.fail_requests("*", "/pods/a", 503, times=2, retry_after_s=0)
    assert usual.read_namespaced_pod("a", "default").metadata.name == "a"
    assert len(server.requests_to("get")) == 3
    server.fail_requests("*", "/pods/a", 503, retry_after_s=0)
    assert_error(503, "ServiceUnavailable", usual.patch_namespaced_pod, "a", "default", patch)


def test_dropped_watches_break_in_the_middle_of_a_line(server, core):
    server.create("pods", pod("a"))
    stream = watch.Watch().stream(core.list_namespaced_pod, "default")
    assert next(stream)["object"].metadata.name == "a"
    server.drop_watches()
    with pytest.raises(HTTPError):
        next(stream)
    server.wait_for_watches(0)


def test_recorded_requests_have_their_rbac_verb_and_resource(server, core, groups):
    core.list_namespaced_pod("default", watch=True, timeout_seconds=1, _preload_content=False)
    core.list_node()
    server.create("pods", pod("a"))
    bind(core, "a", "n1")
    groups.list_cluster_custom_object(GROUP[0], GROUP[1], GROUP[3])
    requests = [
        (request.verb, request.route.group, request.route.plural, request.route.subresource)
        for request in server.requests
    ]
    assert requests == [
        ("watch", "", "pods", ""),
        ("list", "", "nodes", ""),
        ("create", "", "pods", "binding"),
        ("list", "scheduling.x-k8s.io", "podgroups", ""),
    ]


def test_the_server_stops_at_once_and_leaves_no_thread():
    before = threading.active_count()
    with ApiServer() as first, ApiServer() as second:
        for server in (first, second):
            core = CoreV1Api(server.client())
            core.list_node()
            core.list_namespaced_pod("default", watch=True, _preload_content=False)
            server.wait_for_watches(1)
        first.create("nodes", node("n"))
        assert second.all("nodes") == []
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 0.5
    assert threading.active_count() == before


def test_a_job_replaces_deleted_pods_but_not_succeeded_ones(server):
    jobs = JobController(server)
    first, second, third = jobs.create_pods("train", [pod("", gpus=8, gates=[GATE])] * 3)
    assert jobs.step() == []
    server.delete("pods", first)
    assert server.get("pods", first)["metadata"]["deletionTimestamp"], "its finalizer keeps it"
    server.set_phase(second, "Succeeded")
    (new,) = jobs.step()

    assert server.get("pods", first) is None
    replaced = server.get("pods", new)
    assert replaced["spec"]["schedulingGates"] == [{"name": GATE}]
    assert replaced["metadata"]["ownerReferences"][0]["name"] == "train"
    assert {pod["metadata"]["name"] for pod in server.all("pods")} == {new, second, third}
