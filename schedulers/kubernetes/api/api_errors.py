"""Errors of an API server: whether to retry, and how to fix the cause."""

from __future__ import annotations

import json

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.errors import PresageError, one_line
from presage.schedulers.kubernetes.api.list_watch import Resource

POD_GROUP_DEFINITION = "examples/kubernetes/pod_group_crd.yaml"
_BUSY = frozenset({429, 500, 502, 503})
# 410: the version has expired. 504: the version is not reached yet. A list gives a valid one.
_INVALID_VERSION = frozenset({410, 504})


class ClusterError(PresageError):
    """A Kubernetes cluster is unreachable, denies access, or lacks a resource type."""


def is_transient(error: Exception) -> bool:
    """Return whether a retry may succeed: the server is unreachable or overloaded."""
    if isinstance(error, ApiException):
        return error.status in _BUSY | _INVALID_VERSION
    return isinstance(error, HTTPError | OSError)


def needs_relist(error: Exception) -> bool:
    """Return whether to list again after this error, because the version may be its cause."""
    if isinstance(error, ApiException):
        return error.status not in _BUSY
    return not is_transient(error)


def make_cluster_error(error: Exception, host: str, resource: Resource) -> ClusterError:
    """Return the error in one line, with a hint on how to fix it."""
    status = error.status if isinstance(error, ApiException) else None
    match status:
        case 401:
            hint = "the token or certificate is unknown to the server or has expired; renew it"
        case 403:
            hint = (
                f'allow "list" and "watch" on "{resource.plural}" of API group "{resource.group}"'
                " in all namespaces (a ClusterRole)"
            )
        case 404 if resource.group:
            hint = (
                f"the cluster has no {resource.plural}.{resource.group} {resource.version}:"
                f" kubectl apply -f {POD_GROUP_DEFINITION}"
            )
        case 0:
            hint = "the certificate authority in the configuration must have signed its certificate"
        case _ if is_transient(error):
            hint = "check the address and that the API server is up: kubectl get --raw /readyz"
        case _:
            hint = "check that this is the address of an API server: kubectl get --raw /version"
    return ClusterError(f"{host}{resource.path}: {describe_error(error)}; {hint}")


def describe_error(error: Exception) -> str:
    """Return one line: status and message of an API error, class and text of any other."""
    if not isinstance(error, ApiException):
        return one_line(f"{type(error).__name__}: {error}")
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    return one_line(f"{error.status} {message}" if error.status else message)
