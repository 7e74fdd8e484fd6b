"""What it means that an API server does not answer, or refuses, and how that is mended."""

from __future__ import annotations

import json

from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from presage.errors import PresageError, one_line
from presage.schedulers.kubernetes.api.list_watch import Resource

POD_GROUP_DEFINITION = "examples/kubernetes/pod_group_crd.yaml"
_BUSY = frozenset({429, 500, 502, 503})
# 410 says that a version is forgotten, 504 that it is yet to come: a list has another.
_OUTDATED = frozenset({410, 504})


class ClusterError(PresageError):
    """A Kubernetes cluster cannot be reached, or does not allow, or know, what is needed."""


def passes(error: Exception) -> bool:
    """Whether waiting may be enough: there is no connection, or the server has too much to do."""
    if isinstance(error, ApiException):
        return error.status in _BUSY | _OUTDATED
    return isinstance(error, HTTPError | OSError)


def outdates(error: Exception) -> bool:
    """Whether a watch that ended so must not go on where it was, as that may be the reason."""
    if isinstance(error, ApiException):
        return error.status not in _BUSY
    return not passes(error)


def explained(error: Exception, host: str, resource: Resource) -> ClusterError:
    """The same in one line, with what to do."""
    status = error.status if isinstance(error, ApiException) else None
    match status:
        case 401:
            mend = "the token or certificate is none of its users', or has expired"
        case 403:
            mend = (
                f'allow its role "list" and "watch" on "{resource.plural}" of API group'
                f' "{resource.group}", in all namespaces (a ClusterRole)'
            )
        case 404 if resource.group:
            mend = (
                f"the cluster has no {resource.plural}.{resource.group} {resource.version}:"
                f" kubectl apply -f {POD_GROUP_DEFINITION}"
            )
        case 0:
            mend = "its certificate must be of the authority that the configuration names"
        case _ if passes(error):
            mend = "is the address right, and the API server up? Try: kubectl get --raw /readyz"
        case _:
            mend = "is this the address of an API server? Try: kubectl get --raw /version"
    return ClusterError(f"{host}{resource.path}: {said(error)}; {mend}")


def said(error: Exception) -> str:
    """What happened: of a refusal its code and the server's own words, else class and text."""
    if not isinstance(error, ApiException):
        return one_line(f"{type(error).__name__}: {error}")
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    return one_line(f"{error.status} {message}" if error.status else message)
