"""`Capture` and `Port` with coroutines."""

from typing import Any

import numpy

from nocopy import _nocopy
from nocopy._coroutines import ReceivingCoroutines, SendingCoroutines


class Capture(ReceivingCoroutines[_nocopy.Block], _nocopy.Capture):
    __doc__ = _nocopy.Capture.__doc__
    __module__ = "nocopy"

    # While the program has the block before the next one.
    _stays_readable = True


class Port(SendingCoroutines, _nocopy.Port):
    __doc__ = _nocopy.Port.__doc__
    __module__ = "nocopy"

    @classmethod
    def memory_pair(cls, **settings: Any) -> Any:
        """Two linked ports in this process, `(left, right)`: each receives what the other one sends. For tests, and
        for learning; needs no privileges. Keywords: frame_count, ring_sizes, batch, wait."""
        left, right = _nocopy.Port.memory_pair(**settings)
        return cls(left), cls(right)

    async def areceive(self, timeout: float | None = None) -> _nocopy.Batch | None:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses no packet."""
        return await self._receive(self.try_receive, timeout)

    async def asend(self, data: Any, timeout: float | None = None, *, flush: bool = True) -> int:
        """As `send`; waits for free frames without blocking the event loop's thread. Cancelled, it has sent
        some of the packets."""
        rows = data if getattr(data, "ndim", 1) > 1 else numpy.frombuffer(data, "u1")[None]
        return await self._send_rows(rows, lambda some: self.send(some, 0.0, flush=flush), timeout)
