"""Operations of the API server on objects: create, read, update, delete, bind, evict."""

from __future__ import annotations

import copy
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.schedulers.kubernetes.api_server import pod_rules
from tests.schedulers.kubernetes.api_server.metadata_rules import (
    event_causes,
    lease_causes,
    metadata_causes,
    update_causes,
    with_micro_times,
)
from tests.schedulers.kubernetes.api_server.object_store import Key, ObjectStore
from tests.schedulers.kubernetes.api_server.resources import (
    BUILT_IN,
    DEFINITIONS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    Resource,
    Route,
    defined_resources,
)
from tests.schedulers.kubernetes.api_server.selectors import Matches, field_selector, label_selector
from tests.schedulers.kubernetes.api_server.statuses import (
    ApiError,
    Cause,
    Json,
    conflict,
    invalid,
    invalid_field,
    not_found,
    required_field,
    success,
)

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)
NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
EMPTY_IS_ABSENT = {"labels", "annotations", "nodeSelector", "limits", "requests", "unschedulable"}


def drop_empty(value: Any) -> Any:
    """Remove null and empty fields, as Go does when it encodes a built-in kind."""
    if isinstance(value, list):
        return [drop_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    cleaned = {key: drop_empty(item) for key, item in value.items()}
    return {
        key: item
        for key, item in cleaned.items()
        if item is not None and item != [] and not (key in EMPTY_IS_ABSENT and not item)
    }


class Registry:
    """Registry strategies of all kinds, over a store of objects."""

    def __init__(self, history_changes: int, clock: Callable[[], datetime]) -> None:
        self.store = ObjectStore(history_changes)
        self._clock = clock
        self._random = random.Random(0)
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
            self.create(NAMESPACES, "", {"metadata": {"name": name}})

    def served(self) -> list[Resource]:
        """Return the built-in resources and the currently defined custom resources."""
        served = [*BUILT_IN]
        for definition in self.store.all(DEFINITIONS):
            served += defined_resources(definition)
        return served

    def resource(self, route: Route) -> Resource:
        for resource in self.served():
            if (resource.group, resource.version, resource.plural) == route[:3]:
                return resource
        raise ApiError(404, "the server could not find the requested resource")

    def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        with self.store.lock:
            body = self._decode(resource, body)
            metadata = dict(body.get("metadata") or {})
            if metadata.get("resourceVersion"):
                message = "resourceVersion should not be set on objects to be created"
                raise ApiError(500, message, reason="")
            if resource.namespaced:
                self._check_namespace(resource, namespace, metadata)
            if not metadata.get("name"):
                if not metadata.get("generateName"):
                    cause = required_field("metadata.name", "name or generateName is required")
                    raise invalid(resource.kind, "", [cause])
                metadata["name"] = self._generate_name(
                    resource, namespace, metadata["generateName"]
                )
            name = metadata["name"]
            if self.store.get(resource, namespace, name) is not None:
                raise ApiError(
                    409,
                    f'{resource.qualified} "{name}" already exists',
                    reason="AlreadyExists",
                    details={"name": name, "kind": resource.plural},
                )
            for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields"):
                metadata.pop(key, None)
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": self._now()}
            if resource.has_generation:
                metadata["generation"] = 1
            new = self._admit(resource, {**body, "metadata": metadata})
            self._check(
                resource, new, metadata_causes(metadata) + self._create_causes(resource, new)
            )
            return self._put(resource, new)

    def _check_namespace(self, resource: Resource, namespace: str, metadata: Json) -> None:
        """Check the namespace (NamespaceLifecycle admission)."""
        if metadata.setdefault("namespace", namespace) != namespace:
            raise ApiError(
                400,
                "the namespace of the provided object does not match the namespace sent on the"
                " request",
            )
        if self.store.get(NAMESPACES, "", namespace) is None:
            raise not_found("namespaces", namespace)

    def _generate_name(self, resource: Resource, namespace: str, prefix: str) -> str:
        while True:
            name = prefix[:58] + "".join(self._random.choices(NAME_LETTERS, k=5))
            if self.store.get(resource, namespace, name) is None:
                return name

    def _decode(self, resource: Resource, body: Any) -> Json:
        if not isinstance(body, dict):
            raise ApiError(400, f"cannot read a {resource.kind} from {type(body).__name__}")
        named = (body.get("apiVersion"), body.get("kind"))
        if resource.custom and None in named:
            raise ApiError(400, f"Object 'Kind' or 'apiVersion' is missing in {body}")
        expected = (resource.api_version, resource.kind)
        if any(actual not in (None, value) for actual, value in zip(named, expected, strict=True)):
            raise ApiError(400, f"{named} cannot be handled as {expected}")
        body = copy.deepcopy(body) if resource.custom else drop_empty(body)
        body = with_micro_times(resource, body)
        return {"apiVersion": resource.api_version, "kind": resource.kind, **body}

    def _admit(self, resource: Resource, new: Json) -> Json:
        """Return a new object with the defaults of the server."""
        if resource is PODS:
            self._check(resource, new, [] if new.get("spec") else [required_field("spec", "")])
            priority = pod_rules.compute_priority(new["spec"], self.store.all(PRIORITY_CLASSES))
            return pod_rules.with_defaults(new, priority, self._now())
        if resource is NODES:
            status = new.get("status") or {}
            amounts = {name: str(amount) for name, amount in status.get("capacity", {}).items()}
            allocatable = {k: str(amount) for k, amount in status.get("allocatable", {}).items()}
            status |= {"capacity": amounts, "allocatable": allocatable or amounts}
            return {**new, "spec": new.get("spec") or {}, "status": status}
        if resource is NAMESPACES:
            label = {"kubernetes.io/metadata.name": new["metadata"]["name"]}
            labels = {**new["metadata"].get("labels", {}), **label}
            metadata = {**new["metadata"], "labels": labels}
            return {**new, "metadata": metadata, "status": {"phase": "Active"}}
        if resource is DEFINITIONS:
            # The real server needs a moment for this; here it is served at once.
            conditions = [
                {"type": kind, "status": "True"} for kind in ("NamesAccepted", "Established")
            ]
            return {
                **new,
                "status": {"conditions": conditions, "acceptedNames": new["spec"]["names"]},
            }
        if resource.custom and resource.has_status:
            return {key: value for key, value in new.items() if key != "status"}
        return new

    def _create_causes(self, resource: Resource, new: Json) -> list[Cause]:
        if resource is PODS:
            return pod_rules.create_causes(new)
        if resource is DEFINITIONS:
            name = f"{new['spec']['names']['plural']}.{new['spec']['group']}"
            wrong = new["metadata"]["name"] != name
            return [invalid_field("metadata.name", "must be spec.names.plural.group")] * wrong
        return self._kind_causes(resource, new)

    def _kind_causes(self, resource: Resource, new: Json) -> list[Cause]:
        """Return violations of rules that hold for new and updated objects alike."""
        if resource is LEASES:
            return lease_causes(new)
        return event_causes(new) if resource is EVENTS else []

    def _check(self, resource: Resource, new: Json, causes: list[Cause]) -> None:
        if causes:
            raise invalid(resource.kind, new["metadata"].get("name", ""), causes)

    def get(self, resource: Resource, namespace: str, name: str) -> Json:
        found = self.store.get(resource, namespace, name)
        if found is None:
            raise not_found(resource.qualified, name)
        return found

    def matching(self, resource: Resource, query: dict[str, str]) -> Matches:
        by_label = label_selector(query.get("labelSelector", ""))
        by_field = field_selector(query.get("fieldSelector", ""), resource.plural)
        return lambda candidate: by_label(candidate) and by_field(candidate)

    def list_of(self, resource: Resource, namespace: str, query: dict[str, str]) -> Json:
        with self.store.lock:
            self._check_versions(query)
            limit = int(query.get("limit") or 0)
            if token := query.get("continue"):
                # All pages are of the version of the first one, until it expires.
                if token not in self._pages:
                    raise ApiError(
                        410,
                        "The provided continue parameter is too old to display a consistent list"
                        " result. You can start a new list without the continue parameter.",
                    )
                version, found = self._pages[token]
            else:
                matches = self.matching(resource, query)
                version = self.store.version
                found = [item for item in self.store.all(resource, namespace) if matches(item)]
            metadata: Json = {"resourceVersion": str(version)}
            if limit and len(found) > limit:
                metadata["continue"] = str(uuid.uuid4())
                self._pages[metadata["continue"]] = (version, found[limit:])
                if not query.get("labelSelector") and not query.get("fieldSelector"):
                    metadata["remainingItemCount"] = len(found) - limit
                found = found[:limit]
        if not resource.custom:
            # Items of a typed list have no kind: the list has it.
            type_keys = ("kind", "apiVersion")
            found = [{k: v for k, v in item.items() if k not in type_keys} for item in found]
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": metadata,
            "items": found,
        }

    def _check_versions(self, query: dict[str, str]) -> None:
        if query.get("resourceVersionMatch") == "Exact":
            raise ApiError(400, "resourceVersionMatch=Exact is not supported here")
        requested = parse_version(query.get("resourceVersion"))
        if requested is not None and requested > self.store.version:
            raise ApiError(
                504,
                f"Too large resource version: {requested}, current: {self.store.version}",
                details={"causes": [{"reason": "ResourceVersionTooLarge"}]},
                retry_after_s=1,
            )

    def compact(self) -> None:
        with self.store.lock:
            self.store.compact()
            self._pages.clear()

    def replace(
        self, resource: Resource, namespace: str, name: str, body: Json, *, status: bool = False
    ) -> Json:
        with self.store.lock:
            new = self._decode(resource, body)
            metadata = new.get("metadata") or {}
            if metadata.get("name") != name:
                raise ApiError(
                    400,
                    f"the name of the object ({metadata.get('name', '')}) does not match the name"
                    f" on the URL ({name})",
                )
            old = self.store.get(resource, namespace, name)
            if old is None and resource.create_on_update and not metadata.get("uid"):
                return self.create(resource, namespace, body)
            old = self.get(resource, namespace, name)
            if not metadata.get("resourceVersion") and not resource.unconditional_update:
                cause = invalid_field(
                    "metadata.resourceVersion", "0: must be specified for an update"
                )
                raise invalid(resource.kind, name, [cause])
            return self._change(resource, old, new, status=status)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        apply: Callable[[Json], Json],
        *,
        status: bool = False,
    ) -> Json:
        with self.store.lock:
            old = self.get(resource, namespace, name)
            new = self._decode(resource, apply(old))
            if (new.get("metadata") or {}).get("name") != name:
                raise ApiError(400, "the name of the object does not match the name on the URL")
            return self._change(resource, old, new, status=status)

    def _change(self, resource: Resource, old: Json, new: Json, *, status: bool) -> Json:
        metadata, old_metadata = dict(new["metadata"]), old["metadata"]
        name = old_metadata["name"]
        if metadata.get("uid", old_metadata["uid"]) != old_metadata["uid"]:
            raise conflict(
                resource.qualified, name, _uid_mismatch(metadata["uid"], old_metadata["uid"])
            )
        if (
            metadata.get("resourceVersion", old_metadata["resourceVersion"])
            != old_metadata["resourceVersion"]
        ):
            raise conflict(resource.qualified, name, MODIFIED)
        metadata.pop("managedFields", None)
        for key in (
            "uid", "resourceVersion", "creationTimestamp", "generation", "generateName",
            "namespace", "deletionTimestamp", "deletionGracePeriodSeconds",
        ):  # fmt: skip
            metadata.pop(key, None)
            if key in old_metadata:
                metadata[key] = old_metadata[key]
        if status:
            if not resource.has_status:
                raise ApiError(404, "the server could not find the requested resource")
            # Labels and annotations may change too, except for a custom resource.
            metadata["ownerReferences"] = old_metadata.get("ownerReferences")
            kept_metadata = old_metadata if resource.custom else drop_empty(metadata)
            new = {**old, "metadata": kept_metadata, "status": new.get("status")}
        else:
            new = {**new, "metadata": metadata}
            if resource.has_status:
                new["status"] = old.get("status")
        new = {key: value for key, value in new.items() if value is not None}
        self._check(
            resource, new, update_causes(metadata, old_metadata) + metadata_causes(metadata)
        )
        if resource is PODS and not status:
            self._check(resource, new, pod_rules.update_causes(new, old))
        self._check(resource, new, self._kind_causes(resource, new))
        if new == old:
            return old  # etcd3's GuaranteedUpdate writes nothing, so there is no event
        if resource.has_generation and _desired_state(resource, new) != _desired_state(
            resource, old
        ):
            new = {
                **new,
                "metadata": {**new["metadata"], "generation": old_metadata["generation"] + 1},
            }
        if _can_remove(new):
            return self._remove(resource, new)
        return self._put(resource, new)

    def delete(self, resource: Resource, namespace: str, name: str, options: Json) -> Json:
        """Delete an object; return it if it still exists or is a pod, else a `Status`."""
        with self.store.lock:
            old = self.get(resource, namespace, name)
            metadata = old["metadata"]
            preconditions = options.get("preconditions") or {}
            if preconditions.get("uid", metadata["uid"]) != metadata["uid"]:
                message = _uid_mismatch(preconditions["uid"], metadata["uid"])
                raise conflict(resource.qualified, name, message)
            version = metadata["resourceVersion"]
            if preconditions.get("resourceVersion", version) != version:
                raise conflict(
                    resource.qualified,
                    name,
                    "Precondition failed: ResourceVersion in precondition:"
                    f" {preconditions['resourceVersion']},"
                    f" ResourceVersion in object meta: {version}",
                )
            requested_s = options.get("gracePeriodSeconds")
            period_s = pod_rules.grace_period_s(old, requested_s) if resource is PODS else 0
            if metadata.get("deletionTimestamp") and (
                requested_s is None or period_s >= metadata["deletionGracePeriodSeconds"]
            ):
                return old  # a grace period can only be shortened
            deleted = self._mark_deleted(old, period_s)
            if not _can_remove(deleted):
                return self._put(resource, deleted)
            removed = self._remove(resource, deleted)
        if resource is PODS:
            return removed
        return success(name=name, kind=resource.plural, uid=metadata["uid"], group=resource.group)

    def _mark_deleted(self, old: Json, period_s: int) -> Json:
        metadata = dict(old["metadata"])
        if "generation" in metadata and "deletionTimestamp" not in metadata:
            metadata["generation"] += 1
        ends = self._clock() + timedelta(seconds=period_s)
        metadata |= {
            "deletionTimestamp": _format_time(ends),
            "deletionGracePeriodSeconds": period_s,
        }
        return {**old, "metadata": metadata}

    def _remove(self, resource: Resource, old: Json) -> Json:
        metadata = old["metadata"]
        self.store.put(self._key(resource, old), None)
        if resource is NAMESPACES:
            self._remove_all(lambda key: key.namespace == metadata["name"])
        if resource is DEFINITIONS:
            group, plural = old["spec"]["group"], old["spec"]["names"]["plural"]
            self._remove_all(lambda key: (key.group, key.plural) == (group, plural))
        return {
            **old,
            "metadata": {**metadata, "resourceVersion": str(self.store.version)},
        }

    def _remove_all(self, chosen: Callable[[Key], bool]) -> None:
        for key in filter(chosen, self.store.keys()):
            self.store.put(key, None)

    def bind(self, namespace: str, name: str, binding: Json) -> Json:
        with self.store.lock:
            metadata = binding.get("metadata") or {}
            if metadata.get("name", name) != name:
                raise ApiError(400, "name in URL does not match name in Binding object")
            target = binding.get("target") or {}
            causes = []
            if target.get("kind") not in (None, "", "Node"):
                causes.append(invalid_field("target.kind", "must be empty or Node"))
            if not target.get("name"):
                causes.append(required_field("target.name", ""))
            self._check(PODS, {"metadata": {"name": name}}, causes)
            pod = self.get(PODS, namespace, name)
            for key in ("uid", "resourceVersion"):
                expected, actual = metadata.get(key), pod["metadata"][key]
                if expected not in (None, actual):
                    message = _uid_mismatch(expected, actual) if key == "uid" else MODIFIED
                    raise conflict("pods/binding", name, message)
            try:
                bound = pod_rules.bind(pod, {**binding, "metadata": metadata}, self._now())
            except ValueError as error:
                raise conflict("pods/binding", name, str(error)) from None
            self._put(PODS, bound)
            return success()

    def evict(self, namespace: str, name: str, eviction: Json) -> Json:
        """Delete a pod; disruption budgets are not supported."""
        if (eviction.get("metadata") or {}).get("name") != name:
            raise ApiError(400, "name in URL does not match name in Eviction object")
        self.delete(PODS, namespace, name, eviction.get("deleteOptions") or {})
        return success()

    def _put(self, resource: Resource, new: Json) -> Json:
        written = self.store.put(self._key(resource, new), new)
        assert written is not None
        return written

    def _key(self, resource: Resource, obj: Json) -> Key:
        metadata = obj["metadata"]
        return Key(resource.group, resource.plural, metadata.get("namespace", ""), metadata["name"])

    def _now(self) -> str:
        return _format_time(self._clock())


def parse_version(text: str | None) -> int | None:
    """Parse a resourceVersion; return None for "0" or if it is missing: any version will do."""
    if text is None or text in ("", "0"):
        return None
    if not text.isdecimal():
        raise ApiError(400, f'Invalid value: "{text}": invalid resource version')
    return int(text)


def _format_time(moment: datetime) -> str:
    """metav1.Time: whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _uid_mismatch(expected: str, actual: str) -> str:
    return f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"


def _can_remove(candidate: Json) -> bool:
    metadata = candidate["metadata"]
    ended = metadata.get("deletionTimestamp") and not metadata.get("deletionGracePeriodSeconds")
    return bool(ended) and not metadata.get("finalizers")


def _desired_state(resource: Resource, candidate: Json) -> Json:
    ignored = {"metadata"} | ({"status"} if resource.has_status else set())
    return {key: value for key, value in candidate.items() if key not in ignored}
