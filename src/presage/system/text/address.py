"""HOST:PORT, as people write it."""

from __future__ import annotations

from presage.errors import ConfigError


def check_address(text: str, named: str, otherwise: str) -> None:
    """It is HOST:PORT.

    Parameters
    ----------
    named : str
        What an error about its port calls it.
    otherwise : str
        What an error says of a text of another form.

    Raises
    ------
    ConfigError
        It has another form, or there can be no such port.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(otherwise)
    if len(port) > 5 or not 1 <= int(port) <= 65_535:
        raise ConfigError(f"{named}: port {port} is out of range; name one of 1 to 65535")
