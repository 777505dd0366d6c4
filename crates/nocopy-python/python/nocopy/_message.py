"""`Endpoint` with coroutines."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import numpy

from nocopy import _nocopy
from nocopy._coroutines import Found, SendingCoroutines


class Endpoint(SendingCoroutines, _nocopy.Endpoint):
    __doc__ = _nocopy.Endpoint.__doc__
    __module__ = "nocopy"

    async def areceive(self, timeout: float | None = None) -> Any:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no message."""
        return await self._receive(self.try_receive, timeout, by_event=True)

    async def areceive_many(self, timeout: float | None = None) -> Any:
        """As `receive_many`, without blocking the event loop's thread. Cancelled, it loses no message."""
        messages = await self._receive(lambda: self.receive_many(0.0) or None, timeout, by_event=True)
        return self.receive_many(0.0) if messages is None else messages

    async def areceive_into(self, array: Any, timeout: float | None = None) -> Any:
        """As `receive_into`, without blocking the event loop's thread. Cancelled, it loses no message."""
        filled = await self._receive(lambda: self.receive_into(array, 0.0) or None, timeout, by_event=True)
        return self.receive_into(array, 0.0) if filled is None else filled

    async def aconnect(self, to: Any, timeout: float | None = None) -> Any:
        """As `connect`, without blocking the event loop's thread. Cancelled, it connects to no address."""
        failed: Exception | None = None
        for address in await _addresses(to):
            peer = self.start_connect(address)
            is_connected = False
            try:
                is_connected = bool(await self._arming(lambda: self._arm_for_outcome(peer) or None, timeout))
                if is_connected:
                    return peer
                failed = _nocopy.TimedOut(
                    f"{address[0]}: not connected within {timeout} s; no answer came; check that an "
                    "endpoint is bound there, and that no firewall drops UDP"
                )
            except _nocopy.NotConnected as error:
                failed = error
            finally:
                if not is_connected:
                    self.abort(peer)
        raise failed or ValueError("to: the name has no address; give another")

    async def asend_to(
        self, data: Any, to: Any, timeout: float | None = None, *, flush: bool = True
    ) -> None:
        """As `send_to`; waits for room without blocking the event loop's thread. Cancelled, it has sent the
        whole message or nothing.
        """
        await self._with_room(lambda: self.send_to(data, to, 0.0, flush=flush), timeout)

    async def asend_many(
        self, data: Any, to: Any, timeout: float | None = None, *, flush: bool = True
    ) -> int:
        """As `send_many`; waits for room without blocking the event loop's thread. Cancelled, it has sent
        some of the rows.
        """
        rows = numpy.asarray(data)
        return await self._send_rows(rows, lambda some: self.send_many(some, to, 0.0, flush=flush), timeout)

    async def arequest(self, data: Any, to: Any, timeout: float | None = None, *, flush: bool = True) -> int:
        """As `request`; waits for room without blocking the event loop's thread."""
        return await self._with_room(lambda: self.request(data, to, 0.0, flush=flush), timeout)

    async def arespond(
        self, data: Any, to: Any, call: int, timeout: float | None = None, *, flush: bool = True
    ) -> None:
        """As `respond`; waits for room without blocking the event loop's thread."""
        await self._with_room(lambda: self.respond(data, to, call, 0.0, flush=flush), timeout)

    async def acall(self, request: Any, to: Any, timeout: float | None = None) -> Any:
        """As `call`, without blocking the event loop's thread. One coroutine at a time calls or receives; one
        that has several requests under way sends them by `arequest`. Cancelled, it has sent the request or
        not; a response that comes later is received as any other message.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        call = await self.arequest(request, to, timeout)
        left = None if end is None else max(end - loop.time(), 0.0)
        response = await self._arming(lambda: self._arm_for_response(call, to), left)
        if response is None:
            raise _nocopy.TimedOut(
                f"request: no response within {timeout} s; the peer has the request, or will get it; ask "
                "again only if that does no harm"
            )
        return response

    async def aclose(self, timeout: float = 10.0) -> bool:
        """As `close`, without blocking the event loop's thread."""
        is_finished = None
        try:
            is_finished = await self._arming(lambda: self._arm_for_finish() or None, timeout, role="sending")
        finally:
            is_complete = self.close(0.0) and bool(is_finished)
        return is_complete

    def _sender_fileno(self) -> int:
        return int(self.fileno())

    async def _arming(
        self, attempt: Callable[[], Found | None], timeout: float | None, role: str = "receiving"
    ) -> Found | None:
        """As `_receive`, for an attempt that prepares for the wait by itself."""
        return await self._repeat(role, attempt, lambda: False, self.fileno, timeout)

    async def _with_room(self, send: Callable[[], Found], timeout: float | None) -> Found:
        """What `send` returns, once there is room for it; raises `Full` when the time is over."""
        full: Exception = _nocopy.Full()

        def attempt() -> tuple[Found] | None:
            nonlocal full
            try:
                return (send(),)
            except _nocopy.Full as error:
                full = error
                return None

        sent = attempt()
        self._wake_others("sending")
        sent = sent or await self._send(attempt, timeout)
        if sent is None:
            raise full
        return sent[0]


async def _addresses(to: Any) -> list[Any]:
    """All addresses of an argument; a name is looked up by another thread."""
    if isinstance(to, str) and ":" in to:
        host, _, port = to.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
    elif isinstance(to, tuple) and len(to) == 2 and isinstance(to[0], str):
        host, port = to
    else:
        return [to]  # an address, or what `start_connect` refuses
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_DGRAM)
    return [address for *_, address in found]
