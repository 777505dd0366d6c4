"""Coroutines on asyncio's loop, over calls that never wait: the one loop of all classes."""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

Found = TypeVar("Found")

# Seconds until each coroutine looks again of those that wait for one descriptor.
SHARED_PAUSE = 0.005

# Seconds until a descriptor that stays readable is looked at again.
READABLE_PAUSE = 0.001

# Coroutines that find something at once let others run after so many.
AT_ONCE_MAX = 64


class _Wait(NamedTuple):
    descriptor: int
    future: asyncio.Future[bool]


class Coroutines:
    """Base of the classes whose calls exist as coroutines, too.

    A class gets one by a line: `return await self._receive(self.try_receive, timeout)`.
    """

    # By role ('receiving', 'sending'): what its coroutine waits for; None while it does not wait.
    _waits: Any = None
    _at_once = 0
    # Whether the descriptor may stay readable while there is nothing; then it is looked at every millisecond.
    _stays_readable = False
    # Of the class itself.
    arm: Any
    fileno: Any
    aclose: Any

    async def _receive(
        self, attempt: Callable[[], Found | None], timeout: float | None = None, *, by_event: bool = False
    ) -> Found | None:
        """What `attempt` finds, as soon as it finds something; None when the time is over. With `by_event`,
        something else may end the wait, too: then None, or what was found.
        """
        return await self._repeat("receiving", attempt, self.arm, self.fileno, timeout, by_event)

    async def _repeat(
        self,
        role: str,
        attempt: Callable[[], Found | None],
        arm: Callable[[], bool],
        fileno: Callable[[], int],
        timeout: float | None,
        by_event: bool = False,
    ) -> Found | None:
        """Repeats an attempt until it returns something; None when the time is over.

        Everything is taken by the attempt alone, and returned at once: a cancelled wait loses nothing.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        if self._waits is None:
            self._waits = {}
        if role in self._waits:
            raise RuntimeError(
                f"{type(self).__name__}: {role}: another coroutine waits already; let one at a time wait"
            )
        self._waits[role] = None
        try:
            await self._let_others_run()
            is_first_look = True
            while True:
                try:
                    found = attempt()
                    is_ready = found is None and arm()
                finally:
                    if is_first_look:
                        self._wake_others(role)
                if found is not None:
                    return found
                if is_ready:
                    if by_event or (deadline is not None and loop.time() >= deadline):
                        return attempt()
                    await asyncio.sleep(0)
                    continue
                self._at_once = 0
                try:
                    async with asyncio.timeout_at(deadline):
                        is_first_look = await self._readable(role, fileno())
                        if self._stays_readable and (found := attempt()) is not None:
                            return found
                        if self._stays_readable:
                            await asyncio.sleep(READABLE_PAUSE)
                except TimeoutError:
                    return attempt()
        finally:
            del self._waits[role]
            self._wake_others(role)

    async def _let_others_run(self) -> None:
        self._at_once += 1
        if self._at_once >= AT_ONCE_MAX:
            self._at_once = 0
            await asyncio.sleep(0)

    def _wake_others(self, role: str) -> None:
        """Lets the coroutines of other roles look again: what this one has taken in may be what they wait for, and
        the descriptor does not say so any more. They do not wake this one in turn.
        """
        loop = _running_loop()
        for other, wait in (self._waits or {}).items():
            if other == role or wait is None or wait.future.get_loop() is not loop:
                continue
            if not wait.future.done():
                wait.future.set_result(False)

    async def _readable(self, role: str, descriptor: int) -> bool:
        """Waits until the descriptor is readable, or another role has looked: then False.

        Coroutines of several roles may wait for the same descriptor. What one of them takes in at a look may be for
        another one, and the descriptor does not say so: while several wait, all look again after a while.
        """
        loop = asyncio.get_running_loop()
        others = self._waiting_for(descriptor)
        if any(wait.future.get_loop() is not loop for wait in others):
            raise RuntimeError(
                f"{type(self).__name__}: {role}: a coroutine of another event loop waits; use one loop"
            )
        wait = _Wait(descriptor, loop.create_future())
        if not others:
            loop.add_reader(descriptor, self._wake, descriptor)
        self._waits[role] = wait
        try:
            async with asyncio.timeout(SHARED_PAUSE if others else None):
                return bool(await wait.future)
        except TimeoutError:
            return True
        finally:
            # Not if it was closed meanwhile: the number may be that of another descriptor by now.
            if self._waits[role] is wait:
                self._waits[role] = None
                if not self._waiting_for(descriptor):
                    loop.remove_reader(descriptor)

    def _waiting_for(self, descriptor: int) -> list[_Wait]:
        waits = (self._waits or {}).values()
        return [wait for wait in waits if wait is not None and wait.descriptor == descriptor]

    def _wake(self, descriptor: int) -> None:
        for wait in self._waiting_for(descriptor):
            if not wait.future.done():
                wait.future.set_result(True)

    def _end_waits(self) -> None:
        """Ends all waits, before the descriptors are closed: the next attempt raises."""
        for role, wait in list((self._waits or {}).items()):
            if wait is None:
                continue
            loop = wait.future.get_loop()
            if loop.is_running() and loop is not _running_loop():
                raise RuntimeError(
                    f"{type(self).__name__}: {role}: a coroutine waits; close it in the thread of its loop"
                )
            self._waits[role] = None
            if not loop.is_closed():
                loop.remove_reader(wait.descriptor)
                if not wait.future.done():
                    wait.future.set_result(True)

    def close(self, *arguments: Any, **keywords: Any) -> Any:
        self._end_waits()
        return super().close(*arguments, **keywords)  # type: ignore[misc]

    def __exit__(self, *_raised: object) -> None:
        self.close()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class ReceivingCoroutines(Coroutines, Generic[Found]):
    """The same for classes that only receive."""

    # Of the class itself.
    try_receive: Any

    async def areceive(self, timeout: float | None = None) -> Found | None:
        """As `receive`, without blocking the event loop's thread. Cancelled, it loses nothing."""
        return await self._receive(self.try_receive, timeout)

    async def aclose(self) -> None:
        """As `close`, which does not wait."""
        self.close()


class SendingCoroutines(Coroutines):
    """The same for classes that also send."""

    # Of the class itself.
    flush: Any
    drain: Any
    _arm_to_send: Any
    _sender_fileno: Any

    async def _send(self, attempt: Callable[[], Found | None], timeout: float | None = None) -> Found | None:
        """As `_receive`, for an attempt that needs room to send, or memory to be free again."""
        return await self._repeat("sending", attempt, self._arm_to_send, self._sender_fileno, timeout)

    async def _send_rows(self, rows: Any, send: Callable[[Any], int], timeout: float | None) -> int:
        """Repeats a call that sends some of the rows that it is given, and returns how many; returns their number
        when all are sent, or the time is over."""
        sent = send(rows)

        def attempt() -> bool | None:
            nonlocal sent
            sent += send(rows[sent:])
            return sent == len(rows) or None

        if sent < len(rows):
            await self._send(attempt, timeout)
        return sent

    async def aflush(self, timeout: float | None = None) -> bool:
        """As `flush`, without blocking the event loop's thread."""
        return bool(await self._send(lambda: self.flush(0.0) or None, timeout))

    async def adrain(self, timeout: float | None = None) -> bool:
        """As `drain`, without blocking the event loop's thread."""
        return bool(await self._send(lambda: self.drain(0.0) or None, timeout))

    async def aclose(self, timeout: float = 10.0) -> bool:
        """As `close`, without blocking the event loop's thread."""
        is_drained = False
        try:
            is_drained = await self.adrain(timeout)
        finally:
            is_complete = self.close(0.0) and is_drained
        return is_complete
