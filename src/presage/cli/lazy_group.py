"""Groups whose commands are imported one by one: when one runs, or when all are listed.

.. code-block:: python

    app = group("Send tokens.", examples="presage token", commands=lazy_commands(
        "presage.cli.serving", {"Predict and serve": {"token": "token:token"}}
    ))

To import every command would take longer than most commands run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from presage.cli.command import add_command


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, each imported when it is first used.

    Parameters
    ----------
    package : str
    panels : mapping of str to mapping
        By the title of a list of commands: the place of each command, by its name. A place is a
        module of the package and the name of a function, or of a group of commands, in it.

    Attributes
    ----------
    on_load : callable
        Called with each command that is imported.
    """

    def __init__(self, package: str, panels: Mapping[str, Mapping[str, str]]) -> None:
        self._package = package
        self._defined = {
            name: (panel, place)
            for panel, places in panels.items()
            for name, place in places.items()
        }
        self._loaded: dict[str, Any] = dict.fromkeys(self._defined)
        self.on_load: Callable[[Any], None] = lambda _: None

    def __getitem__(self, name: str) -> Any:
        if self._loaded[name] is None:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._loaded

    def get(self, name: str, default: Any = None) -> Any:  # noqa: D102
        # Not as in Mapping, which takes a KeyError of a module's import for an unknown command.
        return self[name] if name in self else default  # noqa: SIM401

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)

    def _load(self, name: str) -> Any:
        panel, place = self._defined[name]
        module, attribute = place.split(":")
        defined = getattr(import_module(f"{self._package}.{module}"), attribute)
        parent = typer.Typer()
        if isinstance(defined, typer.Typer):
            parent.add_typer(defined, name=name, rich_help_panel=panel)
        else:
            add_command(parent, defined, name=name, panel=panel)
        command = get_group(parent).commands[name]
        self.on_load(command)
        return command


def lazy_commands(package: str, panels: Mapping[str, Mapping[str, str]]) -> type[TyperGroup]:
    """Return a class for ``group(commands=...)``; the parameters are those of `LazyCommands`."""

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands = LazyCommands(package, panels)

    return LazyGroup
