"""Files that an administrator installs into the folder of slurm.conf."""

from __future__ import annotations

from pathlib import Path

from presage.errors import ConfigError
from presage.schedulers.slurm.bridge_server import SOCKET
from presage.system.files.atomic_file import write_new

_SITE = Path(__file__).with_name("site")
JOB_SUBMIT, EPILOG = "job_submit.lua", "presage_epilog.sh"
_MODES = {JOB_SUBMIT: 0o644, EPILOG: 0o755}


def site_file(name: str, state: Path) -> str:
    """Return the content of a file for a state folder.

    Raises
    ------
    ConfigError
        The path of the folder has characters that would need quoting.
    """
    text = str(state.resolve())
    if not text.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"--state {text}: use a path of letters, digits, / - _ and .")
    content = (_SITE / name).read_text()
    return content.replace("@SOCKET@", f"{text}/{SOCKET}").replace("@STATE@", text)


def write_site_files(folder: Path, state: Path) -> list[Path]:
    """Write all files; return their paths.

    Raises
    ------
    ConfigError
        A file exists already, or cannot be written.
    """
    contents = {folder / name: site_file(name, state) for name in _MODES}
    for path in contents:
        if path.exists():
            raise ConfigError(f"{path} exists; name another folder, and merge the file by hand")
    for path, content in contents.items():
        try:
            write_new(path, content.encode(), mode=_MODES[path.name])
            path.chmod(_MODES[path.name])
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name the folder of slurm.conf") from error
    return list(contents)
