"""Links: a relay of TCP connections that can be slowed, held up in each direction, or reset."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

_LOOK_S = 0.02
_RESET = struct.pack("ii", 1, 0)  # struct linger: close() sends RST
UP, DOWN = "up", "down"  # from the side that connects to the controller, and back


class Link:
    """A port that relays to another; made by :class:`Links`.

    Attributes
    ----------
    held : set of str
        Directions without traffic: data is held back, and neither side gets an error.
    delay_s : float
        Added to each piece that passes.
    """

    def __init__(self, address: str, port: int, to_port: int) -> None:
        self.target = f"{address}:{port}"
        self.to_port = to_port
        self.held: set[str] = set()
        self.delay_s = 0.0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay a connection to its end."""
        try:
            far = await asyncio.open_connection("127.0.0.1", self.to_port)
        except OSError:
            writer.close()
            return
        self.writers |= {writer, far[1]}
        up = asyncio.create_task(self._relay(reader, far[1], UP))
        down = asyncio.create_task(self._relay(far[0], writer, DOWN))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            for one in (writer, far[1]):
                self.writers.discard(one)
                one.close()

    def reset(self) -> None:
        """Break all connections; in the thread of the relay."""
        for writer in tuple(self.writers):
            with suppress(OSError):
                found = writer.get_extra_info("socket")
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        with suppress(OSError):
            while content := await reader.read(65536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while direction in self.held:
                    await asyncio.sleep(_LOOK_S)
                writer.write(content)
                await writer.drain()


class Links:
    """All links of a run, relayed by one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def add(self, to_port: int, address: str = "127.0.0.1") -> Link:
        """A link from any free port of an address of this machine."""

        async def listen() -> Link:
            listening = socket.create_server((address, 0))
            link = Link(address, listening.getsockname()[1], to_port)
            await asyncio.start_server(link.serve, sock=listening)
            return link

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def reset(self, link: Link) -> None:
        """Break all connections of a link."""
        self._call(link.reset)

    def close(self) -> None:
        """Stop relaying."""

        def stop() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_later(0.05, self._loop.stop)

        self._call(stop)
        self._thread.join(10)

    def _call(self, function: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(function)
