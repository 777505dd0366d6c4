"""`Capture` and `Port` with coroutines."""

from typing import Any

from nocopy import _nocopy
from nocopy._coroutines import Coroutines


class Capture(Coroutines, _nocopy.Capture):
    __doc__ = _nocopy.Capture.__doc__
    __module__ = "nocopy"

    # While the program has the block before the next one.
    _stays_readable = True

    async def areceive(self, timeout: float | None = None) -> _nocopy.Block | None:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no block."""
        return await self._receive(self.try_receive, timeout)

    async def aclose(self) -> None:
        """As `close`, which does not wait."""
        self.close()


class Port(Coroutines, _nocopy.Port):
    __doc__ = _nocopy.Port.__doc__
    __module__ = "nocopy"

    async def areceive(self, timeout: float | None = None) -> _nocopy.Batch | None:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no packet."""
        return await self._receive(self.try_receive, timeout)

    async def aclose(self) -> Any:
        """As `close`, without waiting for packets that are on their way."""
        return self.close(0.0)
