"""Methods of the service with JSON instead of serialized messages.

The conversion is pure Python. Small bodies are converted in the event loop, in about two
milliseconds: a thread would hold the interpreter for five at a time while calls wait. Large ones
are converted in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from google.protobuf.descriptor import Descriptor, MethodDescriptor

from presage.serving.rest.json_codec import as_json, serialize_json
from presage.serving.server.call import Call, Unary

_INLINE_JSON_BYTES = 16 * 1024
_INLINE_MESSAGE_BYTES = 4 * 1024  # of a response, which is four times as large as JSON
_THREADS = 2

Conversion = Callable[[bytes, Descriptor], bytes]


class JsonMethods:
    """Converter of methods from serialized messages to JSON."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="presage-json")

    def convert(self, method: Unary, descriptor: MethodDescriptor) -> Unary:
        """Return a method that takes and returns JSON."""
        request_type, response_type = descriptor.input_type, descriptor.output_type

        async def answer(body: bytes, call: Call) -> bytes:
            request = await self._run(serialize_json, body, request_type, _INLINE_JSON_BYTES)
            call.check_deadline()
            answered = method(request, call)
            response = answered if isinstance(answered, bytes) else await answered
            return await self._run(as_json, response, response_type, _INLINE_MESSAGE_BYTES)

        return answer

    def close(self) -> None:
        """Stop the threads after their current conversions."""
        self._threads.shutdown(cancel_futures=True)

    async def _run(
        self, convert: Conversion, content: bytes, kind: Descriptor, inline_bytes: int
    ) -> bytes:
        if len(content) <= inline_bytes:
            return convert(content, kind)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, convert, content, kind)
