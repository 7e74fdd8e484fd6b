"""Common input and output of stages: parameters, tables, atomic folders and exit codes.

A stage that is interrupted during its imports dies of the signal, which a shell reports as 130 too.
A signal handler set on import would also affect programs that import this package.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from presage.errors import ConfigError, PresageError, TableError
from presage.system.files.atomic_file import write_atomically
from presage.system.files.atomic_folder import replaced_folder
from presage.system.text.known_names import did_you_mean
from presage.system.text.printable import error_line

if TYPE_CHECKING:
    import pandas as pd

INTERRUPTED = 130
PARAMS = Path("params.yaml")

Config = TypeVar("Config")


def run_stage(main: Callable[[], None]) -> None:
    """Run a stage's ``main``: print expected errors as one line, exit with 130 on Ctrl-C."""
    try:
        main()
    except (PresageError, OSError) as error:  # such as a missing file or a full disk
        sys.stderr.write(f"error: {error_line(error)}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; no file is incomplete, run the command again to continue\n")
        exit_interrupted()


def exit_interrupted() -> NoReturn:
    """End the process immediately with status 130.

    ``sys.exit`` would not do: if the interrupt passed through an ``exec`` of a string (dataclasses,
    torch), CPython 3.11 ends with SIGINT, whatever the status.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def check_report_path(path: Path) -> None:
    """Check, before any work is done, that a report can be written to a path.

    Raises
    ------
    ConfigError
        The path is a folder, or its parent folder does not exist.
    """
    if path.is_dir():
        raise ConfigError(f"--report {path}: is a folder; give a file")
    if not path.parent.is_dir():
        raise ConfigError(f"--report {path}: folder {path.parent} does not exist; create it first")


def write_page(content: str, path: Path) -> None:
    """Write a page to a file, atomically.

    Raises
    ------
    ConfigError
        The file cannot be written.
    """
    check_report_path(path)
    try:
        write_atomically(path, lambda partial: partial.write_text(content, encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--report {path}: cannot be written ({error.strerror}); give another path"
        ) from error


def replace_folder(folder: Path, names: Iterable[str], write: Callable[[Path], None]) -> None:
    """Replace a folder atomically by one that ``write`` fills with ``names``.

    A reader sees the complete old or new folder, also if the process is killed, which leaves a
    hidden partial folder.

    Raises
    ------
    TableError
        ``folder`` has other files, which would be lost.
    """
    found = {path.name for path in folder.glob("[!.]*")} if folder.is_dir() else set()
    if folder.exists() and (not folder.is_dir() or not found <= set(names)):
        other = min(found - set(names), default=folder.name)
        raise TableError(
            f"{folder}: has the unknown file {other!r}, which would be deleted; give another folder"
        )
    with replaced_folder(folder) as partial:
        write(partial)


def write_csv(rows: pd.DataFrame, path: Path) -> None:
    """Write rows as CSV for `dvc plots`."""
    write_atomically(path, lambda partial: rows.to_csv(partial, index=False, float_format="%.6g"))


def read_table(path: Path) -> pd.DataFrame:
    """Read a table that an earlier stage wrote.

    Raises
    ------
    TableError
        The file is missing or is not parquet.
    """
    import pandas as pd
    import pyarrow as pa

    try:
        with path.open("rb") as file:  # opened once, see features.tables
            return pd.read_parquet(file)
    except FileNotFoundError as error:
        raise TableError(f"{path}: no such table; run the stage before with `dvc repro`") from error
    except (pa.ArrowException, OSError) as error:
        raise TableError(
            f"{path}: not a readable parquet file ({_one_line(error)}); delete it and `dvc repro`"
        ) from error


def read_params(
    section: str, into: type[Config], *, besides: Iterable[str] = (), path: Path = PARAMS
) -> Config:
    """Read a section of params.yaml, such as ``train.memory``, into a dataclass.

    Parameters
    ----------
    section : str
        Name of the section; dots lead into nested sections.
    into : type
        Dataclass whose fields are the keys of the section.
    besides : iterable of str
        Keys of the section to ignore.
    path : Path

    Raises
    ------
    ConfigError
        The file or the section is missing; a key is unknown, missing or invalid.
    """
    settings = {
        key: value for key, value in read_section(section, path).items() if key not in besides
    }
    where = f"{path}: {section}"
    check_settings(settings, into, where=where)
    missing = [
        field.name
        for field in fields(into)  # type: ignore[arg-type]
        if field.name not in settings and field.default is field.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is missing; see `git diff {path}`")
    try:
        return into(**settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {_one_line(error)}") from error


def read_section(section: str, path: Path = PARAMS) -> Mapping[str, Any]:
    """Return keys and values of a section of a YAML file; dots lead into nested sections.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or the section is missing or empty.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; run the command in the repository's root"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {_one_line(error)}") from error
    for name in section.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: no section {section!r}; see `git diff {path}`")
    return found


def check_settings(settings: Mapping[str, Any], into: type, *, where: str) -> None:
    """Check keys and types of values against the fields of the dataclass ``into``.

    Raises
    ------
    ConfigError
        A key is unknown, or a value has another type. The message suggests a similar key.
    """
    kinds = get_type_hints(into)
    for key, value in settings.items():
        if key not in kinds:
            raise ConfigError(f"{where}.{key} is not a setting; {did_you_mean(str(key), kinds)}")
        _check_value(value, kinds[key], where=f"{where}.{key}")


def _check_value(value: object, kind: Any, *, where: str) -> None:
    """Raise ConfigError if a value does not have the type ``kind``."""
    parts = get_args(kind)
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where}={value!r} is not a list; write [{value}]")
        for part in value:
            _check_value(part, parts[0], where=where)
    elif get_origin(kind) is Mapping:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where}={value!r} is not a mapping; write {{name: value}}")
        for key, part in value.items():
            _check_value(key, parts[0], where=where)
            _check_value(part, parts[1], where=f"{where}.{key}")
    else:
        _check_scalar(value, {kind, *parts}, where=where)


def _check_scalar(value: object, kinds: set[Any], *, where: str) -> None:
    if isinstance(value, date) and kinds & {date, datetime}:
        return
    if float in kinds or int in kinds:
        allowed = (int, float) if float in kinds else int
        if isinstance(value, bool) or not isinstance(value, allowed):
            what = "a number (in YAML, 1e-2 is text)" if float in kinds else "an integer"
            raise ConfigError(f"{where}={value!r} is not {what}")
    elif str in kinds and not isinstance(value, str):
        raise ConfigError(f"{where}={value!r} is not text; put it in quotes")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
