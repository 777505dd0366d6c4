"""The compiled part of the package: what it has is in `nocopy`, too.

Arrays are numpy's. Times are seconds as float, or None for no limit; sizes are in bytes. An error of an
argument is a `TypeError` or `ValueError`; one of the kernel or the library is an `Error`.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, final, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

__all__ = [
    "Burst",
    "Error",
    "Finished",
    "Full",
    "Gone",
    "Memory",
    "NotConnected",
    "OpenError",
    "ReceivedRows",
    "Rejected",
    "TooLong",
    "UdpSocket",
    "Unsupported",
    "__version__",
]

__version__: str

# What sockets have as addresses: "host:port", (host, port), or for IPv6 (host, port, flowinfo, scope).
_Address: TypeAlias = str | tuple[str, int] | tuple[str, int, int, int]
_SocketAddress: TypeAlias = tuple[str, int] | tuple[str, int, int, int]
_Wait: TypeAlias = (
    Literal["spin", "interrupt"] | tuple[Literal["adaptive"], float] | tuple[Literal["coalesced"], int, float]
)
_Bytes: TypeAlias = NDArray[np.uint8]

class Error(OSError):
    """An operation failed: fact, cause, what to do. `errno` is the kernel's, if it gave one."""

class OpenError(Error):
    """It was not opened."""

class Unsupported(OpenError):
    """This machine, or this process, lacks what is needed: `capability` names it."""

    capability: str

class Rejected(Error):
    """It was not sent."""

class Full(Rejected):
    """There is no room: flush, or receive, and send again."""

class TooLong(Rejected):
    """It is longer than can be sent."""

class NotConnected(Rejected):
    """It has no destination."""

class Finished(Rejected):
    """This side has ended its sending."""

class Gone(Rejected):
    """The peer is no longer connected."""

@final
class Memory:
    """Bytes with an owner that keeps them; `numpy.frombuffer` makes an array of them, which is not a copy."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, view: memoryview, /) -> None: ...

@final
class Burst:
    """Datagrams of one sender that arrived together: all of one length. Its memory is kept while an array of
    it lives."""

    @property
    def data(self) -> _Bytes:
        """The payloads: uint8, a row for each datagram, read-only, not copied."""

    @property
    def source(self) -> _SocketAddress:
        """The address that sent them, as sockets have it: (host, port)."""

    @property
    def time(self) -> int | None:
        """When they arrived, in nanoseconds since 1970, or None; see `receive_times`."""

    @property
    def destination(self) -> str | None:
        """The address to which they were sent, or None; see `receive_metadata`."""

    @property
    def interface(self) -> int | None:
        """Index of the interface on which they arrived, or None; see `receive_metadata`."""

    @property
    def is_truncated(self) -> bool:
        """Whether the end was cut off, because the buffer was too small."""

    def __len__(self) -> int: ...

@final
class ReceivedRows:
    """What is known about each row that `receive_into` filled, in arrays."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each datagram; more than a row has if its end was cut off."""

    @property
    def times(self) -> NDArray[np.uint64]:
        """When each arrived, in nanoseconds since 1970; 0 if that is not known (see `receive_times`)."""

    @property
    def sources(self) -> NDArray[np.void]:
        """Of each the sender: 16 bytes of address (IPv4 as ::ffff:a.b.c.d), and the port."""

    def source(self, row: int) -> _SocketAddress:
        """The address that sent the datagram in that row, as sockets have it.

        IndexError: the row was not filled.
        """

    def __len__(self) -> int:
        """Rows that were filled: the first ones."""

@disjoint_base
class UdpSocket:
    """A UDP socket whose datagrams are arrays.

    Receiving and sending are independent: one thread may receive while another one sends. RuntimeError: two
    threads use one half at a time, or the socket is of the process that forked this one. ValueError: it is
    closed.
    """

    def __new__(
        cls,
        address: _Address | None = None,
        *,
        connect: _Address | None = None,
        method: str | None = None,
        receive_buffer: int | None = None,
        send_buffer: int | None = None,
        group: str | list[str] | None = None,
        multicast: tuple[int, int] | None = None,
        broadcast: bool = False,
        reuse_address: bool = False,
        hop_limit: int | None = None,
        receive_metadata: bool = False,
        receive_times: bool = False,
        wait: _Wait | None = None,
    ) -> Self:
        """Binds a socket to an address; without one, to any. OpenError: it cannot be bound.

        connect: the peer that `send` sends to; only its datagrams are received.
        method: sends only by this method, instead of the one that measures best; a wrong one lists all.
        receive_buffer, send_buffer: bytes that may wait in the kernel.
        group: also receives from these multicast groups.
        multicast: (index of the interface for groups, their hop limit).
        broadcast: allows broadcasts.
        reuse_address: shares the address with other sockets with this setting.
        hop_limit: TTL or hop limit of datagrams to one host.
        receive_metadata: asks for destination and interface of each datagram.
        receive_times: asks for the kernel's time of each datagram.
        wait: how to wait: 'spin', 'interrupt', ('adaptive', seconds of spinning), or ('coalesced', packets,
            seconds of delay).
        """

    def local_addr(self) -> _SocketAddress:
        """The address that it is bound to: (host, port)."""

    @overload
    def receive(self, timeout: float | None = None, *, gather: Literal[False] = False) -> list[Burst]:
        """Waits for datagrams and returns those that have arrived; an empty list if none came within
        `timeout` seconds.

        With `gather`, (array, lengths): all copied into one uint8 array, with rows of the longest one's
        length, and the int64 length of each. Error: the kernel reported one.
        """

    @overload
    def receive(
        self, timeout: float | None = None, *, gather: Literal[True]
    ) -> tuple[_Bytes, NDArray[np.int64]]: ...
    def try_receive(self) -> list[Burst]:
        """As `receive`, without waiting."""

    def receive_into(self, array: Buffer, timeout: float | None = None) -> ReceivedRows:
        """Waits for datagrams and copies those that have arrived into rows of an array of two dimensions or
        more, from the first row on; at most as many as it has rows.

        TypeError, ValueError: the array is read-only, its rows are not contiguous, it has no rows, or it
        holds objects.
        """

    def send_to(self, data: Buffer, to: _Address, *, segment: int | None = None, flush: bool = True) -> None:
        """Sends datagrams to an address: a row of an array each; or one buffer as one datagram, or as several
        of `segment` bytes.

        The array belongs to the socket until the kernel is done with it: it cannot be resized, and must not
        be changed. With `flush` false it is queued only. Rejected: it was not sent. BufferError: it is a
        `buffer` of the socket of which arrays exist. TypeError, ValueError: it is not contiguous, or holds
        objects.
        """

    def send(self, data: Buffer, *, segment: int | None = None, flush: bool = True) -> None:
        """As `send_to`, to the peer to which the socket is connected."""

    def buffer(self) -> Memory | None:
        """An empty buffer of the socket, to be filled as an array and sent without a copy where the machine
        can; None while all are on their way."""

    def flush(self, timeout: float | None = None) -> bool:
        """Hands everything queued to the kernel. With a timeout, returns False if something is left then."""

    def drain(self, timeout: float) -> bool:
        """Hands everything queued to the kernel, and waits until it no longer reads any memory. Returns False
        if that is not so after `timeout` seconds."""

    def reap(self) -> int:
        """What the kernel is done with becomes free. Returns the number of sends that completed."""

    def in_flight(self) -> int:
        """Sends of which the kernel may still read the memory."""

    def close(self, timeout: float = 10.0) -> bool:
        """Waits for sends for at most `timeout` seconds, and closes the socket. Returns False if something
        was given up."""

    def ledger(self) -> dict[str, Any]:
        """Evidence for every byte, by half: how many were not copied, and how many were, by cause. Beside
        them, how many were copied once more, into arrays, because `receive_into` or `gather` asked for it."""

    def stats(self) -> dict[str, dict[str, int]]:
        """All counters, by half."""

    def explain(self) -> str:
        """Which methods were chosen, and what they were compared with, in words."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when datagrams arrive; only to wait on, after `arm`."""

    def arm(self) -> bool:
        """Prepares for a wait on `fileno`; True if datagrams are waiting already, and no wait is needed."""

    def __iter__(self) -> Iterator[Burst]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
