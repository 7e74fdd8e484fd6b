"""Entry point of ``presage`` and ``python -m presage``; needs no optional package."""

from __future__ import annotations

import os
import sys

from presage.cli.extras import how_to_install
from presage.system.text.printable import error_line


def main() -> None:
    """Run the command line, or print which packages to install for it."""
    _restrict_umask()
    try:
        if sys.argv[1:2] == ["serve"]:  # without the command line's packages
            from presage.serving.main import main as serve

            serve(sys.argv[2:])
            return
        from presage.cli.app import main as run
    except ModuleNotFoundError as error:
        line = how_to_install(error)
        if line is None:
            raise
        sys.stderr.write(f"error: {error_line(line)}\n")
        sys.exit(1)
    run()


def _restrict_umask() -> None:
    """Create no file or folder that every account may write to, whatever the umask is.

    In a folder that all accounts may write to, another account could replace a private folder.
    """
    umask = os.umask(0o077)
    os.umask(umask if umask & 0o002 else umask | 0o022)


if __name__ == "__main__":
    main()
