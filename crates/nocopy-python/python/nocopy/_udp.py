"""`UdpSocket` with coroutines."""

from typing import Any

from nocopy import _nocopy
from nocopy._coroutines import Coroutines, SendingCoroutines


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
        """As `send_to`; waits for room in the kernel without blocking the event loop's thread."""
        self.send_to(data, to, segment=segment, flush=False)
        await self.aflush()

    async def asend(self, data: Any, *, segment: int | None = None) -> None:
        """As `send`; waits for room in the kernel without blocking the event loop's thread."""
        self.send(data, segment=segment, flush=False)
        await self.aflush()

    def place(self, **settings: Any) -> "PlacedReceiver":
        """Receives by number from now on: `PlacedReceiver(self, ...)`. The socket no longer receives itself; it
        still sends."""
        return PlacedReceiver(self, **settings)


class PlacedReceiver(Coroutines, _nocopy.PlacedReceiver):
    __doc__ = _nocopy.PlacedReceiver.__doc__
    __module__ = "nocopy"

    async def areceive(self, timeout: float | None = None) -> _nocopy.Chunk | None:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no datagram."""
        return await self._receive(self.try_receive, timeout)

    async def aclose(self) -> None:
        """As `close`, which does not wait."""
        self.close()
