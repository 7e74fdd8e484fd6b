"""Registry of policies: names, plug-ins and classes that ``--policy`` accepts.

A policy is written as ``NAME`` or ``MODULE:CLASS``, followed by its parameters, such as
``packing:most_members=3`` or ``my_module:MyPolicy:limit=2``. All have the parameter
``fair_share_s``. A name is one of ``POLICIES``, or of a
plug-in: an entry point of the group ``presage.policies``. The part after the first colon is a class
if it contains no ``=``. Names that are registered are never read as modules.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from presage.errors import ConfigError, PresageError
from presage.schedulers.policies.fair_share import split_fair_share, with_fair_share
from presage.schedulers.policies.parameters import read_parameters
from presage.system.processes.user_object import find_user_object
from presage.system.text.known_names import did_you_mean
from presage.system.text.user_code import describe_exception

if TYPE_CHECKING:
    from presage.schedulers.core.policy import Policy, PolicyNeeds

    PolicyClass = Callable[..., Policy]

GROUP = "presage.policies"
_PACKAGE = "presage.schedulers.policies."
_LOCATIONS = {
    "fifo": "fifo:Fifo",
    "backfill": "backfilling.backfill:Backfill",
    "sjf": "shortest_first:ShortestFirst",
    "srtf": "shortest_remaining_first:ShortestRemainingFirst",
    "elastic": "elastic.elastic_policy:Elastic",
    "pollux": "elastic.pollux_policy:Pollux",
    "las": "least_attained_service:LeastAttainedService",
    "best-fit": "best_fit:BestFit",
    "first-fit": "failures.device_policy:FirstFit",
    "random": "failures.device_policy:RandomFit",
    "least-failing": "failures.least_failing:LeastFailing",
    "matched": "failures.least_failing:Matched",
    "expected": "failures.expected:Expected",
    "learnt": "failures.learnt.learnt_policy:Learnt",
    "bin-packing": "bin_packing:BinPacking",
    "packing": "packing.packing_policy:Packing",
    "gang": "gang.gang_policy:Gang",
    "sharing": "sharing.sharing_policy:Sharing",
}


class _OwnPolicies(Mapping[str, "type[Policy]"]):
    """Presage's own policies by name; each is imported when it is looked up."""

    def __getitem__(self, name: str) -> type[Policy]:
        module, _, attribute = _LOCATIONS[name].partition(":")
        found: type[Policy] = getattr(import_module(_PACKAGE + module), attribute)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(_LOCATIONS)

    def __len__(self) -> int:
        return len(_LOCATIONS)


POLICIES: Mapping[str, type[Policy]] = _OwnPolicies()


def policy_names() -> list[str]:
    """Return the names of all registered policies: Presage's own, then plug-ins."""
    return [*POLICIES, *sorted(name for name in _plug_ins() if name not in POLICIES)]


def policy_of(text: str, accepts: Callable[[PolicyNeeds], bool] | None = None) -> Policy:
    """Return the policy that a text names, with its parameters.

    Parameters
    ----------
    accepts : callable, optional
        Whether the caller can run a policy, by its declared needs; errors suggest only such
        policies.

    Raises
    ------
    ConfigError
        If the policy or a parameter is unknown, cannot be imported, or has a value of a wrong type.
    """
    name, *settings = text.split(":")
    found = _registered(name)
    if found is not None and settings and "=" not in settings[0]:
        raise ConfigError(
            f"policy {name!r}: {settings[0]!r} is not PARAMETER=VALUE; a class of module {name!r} "
            "cannot be named, as a registered policy has that name"
        )
    if found is None and settings and "=" not in settings[0]:
        name = f"{name}:{settings.pop(0)}"
        found = _user_class(name)
    if found is None:
        known = [other for other in policy_names() if accepts is None or accepts(_declared(other))]
        raise ConfigError(
            f"policy {name} is not known; {did_you_mean(name, known)} (a class is MODULE:CLASS)"
        )
    settings, half_life_s = split_fair_share(name, settings)
    made = _build(name, found, read_parameters(name, found, settings))
    return with_fair_share(name, made, half_life_s) if half_life_s else made


def as_policy(policy: str | Policy) -> Policy:
    """Return the policy itself, or the one that a text names.

    Raises
    ------
    ConfigError
        If it is neither, or :func:`policy_of` rejects the text.
    """
    if isinstance(policy, str):
        return policy_of(policy)
    return _check_policy("policy", policy)


def policy_label(policy: str | Policy) -> str:
    """Return the text itself, or the name of an object's class."""
    return policy if isinstance(policy, str) else type(policy).__name__


def policy_maker(policy: PolicyClass | Policy | str) -> Callable[[], Policy]:
    """Return a function that makes new, equal policies of a class, function, object or name."""
    from presage.schedulers.core.policy import Policy

    if isinstance(policy, str):
        return partial(policy_of, policy)
    if isinstance(policy, Policy):
        return partial(deepcopy, policy)
    return partial(_build, repr(policy), policy, {})


def policy_source(text: str) -> Path | None:
    """Return the file or package that defines a policy; None for Presage's own."""
    module = type(policy_of(text)).__module__.partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "presage" or file is None:
        return None
    path = Path(file)
    return path.parent if path.name == "__init__.py" else path


def _plug_ins() -> Mapping[str, list[Callable[[], PolicyClass]]]:
    """Return loaders of the policies that installed packages register, by name."""
    from importlib.metadata import entry_points

    found: dict[str, list[Callable[[], PolicyClass]]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point.load)
    return found


def _registered(name: str) -> PolicyClass | None:
    if name in POLICIES:
        return POLICIES[name]
    loaders = _plug_ins().get(name, [])
    if len(loaders) > 1:
        raise ConfigError(
            f"policy {name!r} is registered by {len(loaders)} packages; uninstall all but one, or "
            "name the class, MODULE:CLASS"
        )
    return _imported(name, loaders[0]) if loaders else None


def _user_class(name: str) -> PolicyClass:
    return _imported(name, lambda: find_user_object(name, "class"))


def _imported(name: str, load: Callable[[], PolicyClass]) -> PolicyClass:
    try:
        return load()
    except PresageError as error:
        raise ConfigError(f"policy {name!r}: {error}") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"policy {name!r} cannot be imported: {describe_exception(error)}"
        ) from error


def _build(name: str, found: PolicyClass, parameters: Mapping[str, object]) -> Policy:
    try:
        made = found(**parameters)
    except PresageError:
        raise
    except Exception as error:
        raise ConfigError(f"policy {name!r} cannot be made: {describe_exception(error)}") from error
    return _check_policy(f"policy {name!r}", made)


def _check_policy(what: str, made: object) -> Policy:
    from presage.schedulers.core.policy import Policy, PolicyNeeds

    base = f"{Policy.__module__}.{Policy.__name__}"
    if isinstance(made, type):
        raise ConfigError(f"{what}: {made.__name__} is a class; make an object of it")
    if not isinstance(made, Policy):
        raise ConfigError(f"{what}: {type(made).__name__} is not a policy; derive it from {base}")
    if not isinstance(made.needs, PolicyNeeds):
        raise ConfigError(
            f"{what}: needs is of type {type(made.needs).__name__}; declare PolicyNeeds(...)"
        )
    return made


def _declared(name: str) -> PolicyNeeds:
    """Return what the class of an own policy declares; the default needs for a plug-in."""
    from presage.schedulers.core.policy import PolicyNeeds

    return POLICIES[name].needs if name in POLICIES else PolicyNeeds()
