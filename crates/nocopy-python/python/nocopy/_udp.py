"""`UdpSocket` with coroutines."""

from collections.abc import Callable
from typing import Any

from nocopy import _nocopy
from nocopy._coroutines import ReceivingCoroutines, SendingCoroutines

# As many as a socket takes at once; for more it would wait.
ROWS_QUEUED_MAX = 1024


class UdpSocket(SendingCoroutines, _nocopy.UdpSocket):
    __doc__ = _nocopy.UdpSocket.__doc__
    __module__ = "nocopy"

    async def areceive(self, timeout: float | None = None, *, gather: bool = False) -> Any:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no datagram."""
        if not gather:
            return await self._receive(lambda: self.try_receive() or None, timeout) or []
        nothing = self.receive(0.0, gather=True)
        if len(nothing[1]) > 0:
            return nothing

        def attempt() -> Any:
            gathered = self.receive(0.0, gather=True)
            return gathered if len(gathered[1]) > 0 else None

        return await self._receive(attempt, timeout) or nothing

    async def areceive_into(self, array: Any, timeout: float | None = None) -> Any:
        """As `receive_into`, without blocking the event loop's thread. Cancelled, it loses no datagram."""
        filled = await self._receive(lambda: self.receive_into(array, 0.0) or None, timeout)
        return self.receive_into(array, 0.0) if filled is None else filled

    async def asend_to(self, data: Any, to: Any, *, segment: int | None = None) -> None:
        """As `send_to`; waits for room in the kernel without blocking the event loop's thread. Cancelled, it has
        sent some of the rows."""
        await self._asend(data, lambda some: self.send_to(some, to, segment=segment, flush=False))

    async def asend(self, data: Any, *, segment: int | None = None) -> None:
        """As `send`; waits for room in the kernel without blocking the event loop's thread. Cancelled, it has
        sent some of the rows."""
        await self._asend(data, lambda some: self.send(some, segment=segment, flush=False))

    async def _asend(self, data: Any, send: Callable[[Any], None]) -> None:
        if getattr(data, "ndim", 1) < 2:
            send(data)
        else:
            for first in range(0, len(data), ROWS_QUEUED_MAX):
                await self.aflush()  # what was queued before
                send(data[first : first + ROWS_QUEUED_MAX])
        await self.aflush()

    def place(self, **settings: Any) -> "PlacedReceiver":
        """Receives by number from now on: `PlacedReceiver(self, ...)`. The socket no longer receives itself; it
        still sends."""
        return PlacedReceiver(self, **settings)


class PlacedReceiver(ReceivingCoroutines[_nocopy.Chunk], _nocopy.PlacedReceiver):
    __doc__ = _nocopy.PlacedReceiver.__doc__
    __module__ = "nocopy"
