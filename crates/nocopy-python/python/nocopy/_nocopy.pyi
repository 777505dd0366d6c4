"""The compiled part of the package: what it has is in `nocopy`, too.

Arrays are numpy's. Times are seconds as float, or None for no limit; sizes are in bytes. An error of an
argument is a `TypeError` or `ValueError`; one of the kernel or the library is an `Error`.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer as _Exporter, disjoint_base

__all__ = [
    "Batch",
    "Block",
    "Buffer",
    "Burst",
    "Capture",
    "Chunk",
    "Endpoint",
    "Error",
    "Event",
    "Field",
    "Finished",
    "Full",
    "Gone",
    "Lost",
    "Message",
    "MessageRows",
    "Messages",
    "NoBuffers",
    "NotConnected",
    "OpenError",
    "Peer",
    "PlacedReceiver",
    "Port",
    "ReceivedRows",
    "Rejected",
    "TimedOut",
    "TooLong",
    "TooManyOthers",
    "TooManyPeers",
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
# What has the buffer protocol; numpy says that of its arrays only from Python 3.12 on.
_HasBuffer: TypeAlias = _Exporter | NDArray[Any]

class Error(OSError):
    """An operation failed: fact, cause, what to do. `errno` is the kernel's, if it gave one."""

class NoBuffers(Error):
    """All memory to receive into is kept by arrays: delete some, and receive again."""

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
    """There is no connection: it has no destination, or the peer refused, or did not answer."""

class Finished(Rejected):
    """This side has ended its sending."""

class Gone(Rejected):
    """The peer is no longer connected."""

class Lost(Error):
    """The connection ended before the response came."""

class TimedOut(Error, TimeoutError):
    """No answer came in time."""

class TooManyPeers(Error):
    """The endpoint has as many peers as it was opened for."""

class TooManyOthers(Error):
    """Other messages fill the memory for those that are kept while a response is waited for."""

@disjoint_base
class Buffer:
    """Bytes with the buffer protocol: an empty buffer of a socket, to be filled and sent; or what numpy's arrays
    over received data hold. `numpy.frombuffer` makes an array of them, which is not a copy."""

    def resize(self, bytes: int) -> None:
        """Sets how many bytes it has: those are sent. At most as many as at first.

        BufferError: arrays of it exist. ValueError: it holds fewer.
        """

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
        receive_pool: tuple[int, int] | None = None,
        send_pool: tuple[int, int] | None = None,
        group: str | list[str] | None = None,
        multicast: tuple[int, int] | None = None,
        broadcast: bool = False,
        reuse_address: bool = False,
        hop_limit: int | None = None,
        checksum: Literal["computed", "omitted", "offloaded"] | None = None,
        receive_metadata: bool = False,
        receive_times: bool = False,
        wait: _Wait | None = None,
        port: str | dict[str, Any] | None = None,
    ) -> Self:
        """Binds a socket to an address; without one, to any. OpenError: it cannot be bound.

        connect: the peer that `send` sends to; only its datagrams are received.
        method: sends only by this method, instead of the one that measures best; a wrong one lists all.
        receive_buffer, send_buffer: bytes that may wait in the kernel.
        receive_pool, send_pool: (buffers, bytes of each) that the socket receives into and sends from.
        group: also receives from these multicast groups.
        multicast: (index of the interface for groups, their hop limit).
        broadcast: allows broadcasts.
        reuse_address: shares the address with other sockets with this setting.
        hop_limit: TTL or hop limit of datagrams to one host.
        checksum: of sent datagrams; 'omitted' for IPv4 only.
        receive_metadata: asks for destination and interface of each datagram.
        receive_times: asks for the kernel's time of each datagram.
        wait: how to wait: 'spin', 'interrupt', ('adaptive', seconds of spinning), or ('coalesced', packets,
            seconds of delay).
        port: an interface, or a dictionary of `Port`'s keywords: datagrams bypass the host's network stack.
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

    def receive_into(self, array: _HasBuffer, timeout: float | None = None) -> ReceivedRows:
        """Waits for datagrams and receives those that have arrived into rows of an array of two dimensions or
        more, from the first row on; at most as many as it has rows. Rows behind the filled ones may have been
        written, too.

        TypeError, ValueError: the array is read-only, its rows are not contiguous, it has no rows, or it
        holds objects.
        """

    def send_to(self, data: _HasBuffer, to: _Address, *, segment: int | None = None, flush: bool = True) -> None:
        """Sends datagrams to an address: a row of an array each; or one buffer as one datagram, or as several
        of `segment` bytes.

        The array belongs to the socket until the kernel is done with it: it cannot be resized, and must not
        be changed. With `flush` false it is queued only. Rejected: it was not sent. BufferError: it is a
        `buffer` of the socket of which arrays exist. TypeError, ValueError: it is not contiguous, or holds
        objects.
        """

    def send(self, data: _HasBuffer, *, segment: int | None = None, flush: bool = True) -> None:
        """As `send_to`, to the peer to which the socket is connected."""

    def buffer(self) -> Buffer | None:
        """An empty buffer of the socket, to be filled as an array and sent without a copy where the machine
        can; None while all are on their way."""

    def flush(self, timeout: float | None = None) -> bool:
        """Hands everything queued to the kernel. With a timeout, returns False if something is left then."""

    def drain(self, timeout: float) -> bool:
        """Hands everything queued to the kernel, and waits until it no longer reads any memory. Returns False
        if that is not so after `timeout` seconds."""

    def errors(self) -> list[tuple[_SocketAddress | None, str | None, str]]:
        """Errors that the network reported for sent datagrams, such as a refusing host: (to, from, text). Each
        is returned once."""

    def set_wait(self, wait: _Wait) -> None:
        """Changes how receiving waits, from the next wait on."""

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

    def _sender_fileno(self) -> int: ...
    def _arm_to_send(self) -> bool: ...
    def __iter__(self) -> Iterator[Burst]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Field:
    """Where a number is in each datagram: its first byte, and its type, such as '>u8', '<u4', 'u1'. Any number
    of bytes from 1 to 8 is possible: SPEAD's addresses are '>u6'."""

    def __new__(cls, offset: int, dtype: str) -> Self: ...

@final
class Chunk:
    """Rows of consecutive numbers. Its memory returns to the ring when it and its arrays are deleted."""

    @property
    def array(self) -> NDArray[Any]:
        """The rows, in the shape and type that were asked for; read-only, not copied. Rows whose datagram is
        missing are zeros."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether the datagram of each row came."""

    @property
    def first(self) -> int:
        """The number of its first row; goes on counting when the field wraps."""

    @property
    def filled(self) -> int:
        """Rows that are present."""

@disjoint_base
class PlacedReceiver:
    """Receives datagrams into rows of chunks, by a number that each carries. Iterating gives `Chunk`s, in
    order, each once."""

    def __new__(
        cls,
        socket: UdpSocket,
        *,
        number: Field | tuple[Field, Field],
        shape: tuple[int, ...],
        payload: slice | None = None,
        dtype: DTypeLike | None = None,
        ring: int = 4,
        rows_per_heap: int | None = None,
    ) -> Self:
        """Takes over what a socket receives: the payload of each datagram goes into its row of an array. The
        socket no longer receives itself; it still sends.

        number: where the row's number is; or two fields, of the heap and of the offset in it, as SPEAD has
            them: then it is heap * rows_per_heap + offset / bytes of a row.
        shape: of each chunk: (rows, items of a row). dtype: of the items; uint8 without it.
        payload: where the row's bytes begin in a datagram: slice(16, None); behind the last field without it.
        ring: chunks that there are; more memory is never taken.
        """

    def receive(self, timeout: float | None = None) -> Chunk | None:
        """Waits for the next chunk; None if none was complete within `timeout` seconds. NoBuffers: arrays of
        all chunks of the ring are kept."""

    def try_receive(self) -> Chunk | None:
        """As `receive`, without waiting."""

    def finish(self) -> Chunk | None:
        """Ends the chunks that are open, and returns the oldest; the others follow, until it returns None. For
        the end of a run, or a pause: a datagram that comes later for one of them begins it anew."""

    def close(self) -> None:
        """Closes it. Chunks that are kept stay."""

    def ledger(self) -> dict[str, int]:
        """Evidence for every byte: how many were not copied, and how many were, by cause."""

    def stats(self) -> dict[str, int]:
        """All counters; among them `late`, `double`, `foreign`, `short` and `long` datagrams."""

    def explain(self) -> str:
        """Which way was chosen, and what it was compared with, in words."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when datagrams arrive; only to wait on, after `arm`."""

    def arm(self) -> bool:
        """Prepares for a wait on `fileno`; True if datagrams are waiting already, and no wait is needed."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Chunk: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Block:
    """Packets that a capture received together. Its memory returns to the kernel when it and its arrays are
    deleted."""

    @property
    def data(self) -> _Bytes:
        """All bytes of the block up to the end of the last packet: uint8, read-only, not copied. Between
        packets lie the kernel's headers."""

    @property
    def packets(self) -> NDArray[np.void]:
        """What is known about each packet, in the order of their arrival: a structured array, read-only:
        offset (int64, in `data`), length (uint32, captured bytes), original_length (uint32), time (int64,
        nanoseconds since 1970), vlan (int16; -1 without a tag), outgoing (bool, sent by this host)."""

    def column(self, offset: int, dtype: DTypeLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One header field of all packets: (values, mask). The field begins `offset` bytes into the packet.
        The mask is true where the packet is too short for the field, as in numpy.ma; the value is 0 there.

        ValueError: offset negative, dtype without bytes. TypeError: a dtype of objects.
        """

    def __len__(self) -> int: ...

@disjoint_base
class Capture:
    """A passive capture of an interface, in blocks of packets. Iterating gives `Block`s."""

    def __new__(
        cls,
        interface: str,
        *,
        filter: str | None = None,
        blocks: tuple[int, int] | None = None,
        block_timeout: float | None = None,
        snap: int | None = None,
        promiscuous: bool = False,
        outgoing: bool = False,
        immediate: bool = False,
        wait: _Wait | None = None,
    ) -> Self:
        """Opens a capture of an interface of this thread's network namespace.

        filter: an expression of pcap-filter(7), or a program as `tcpdump -ddd` prints it.
        blocks: the bytes of a block, and their number.
        block_timeout: seconds for which a packet may wait in a block that is not full (at least 0.001).
        snap: bytes kept of a packet. immediate: a block for each packet, at once.

        Unsupported: the capability CAP_NET_RAW is missing. OpenError: another refusal. ValueError: the filter
        is not understood.
        """

    def receive(self, timeout: float | None = None) -> Block | None:
        """Waits for the next block; None if there was none within `timeout` seconds."""

    def try_receive(self) -> Block | None:
        """The next block if there is one, otherwise None; does not wait."""

    def next_packet(self) -> tuple[bytes, int, int, bool] | None:
        """The next packet alone, copied: (bytes, time, original_length, outgoing), or None if there is none;
        does not wait. Packets of a block that was begun do not come with `receive`."""

    def close(self) -> None:
        """Closes the capture. Blocks and arrays that the program has stay as they are."""

    def ledger(self) -> dict[str, int]:
        """Bytes of the received blocks: the kernel copied all of them into the ring, once."""

    def stats(self) -> dict[str, int]:
        """All counters: `moved` and `bytes` count blocks; `packets` those in them; `tp_packets` what matched
        the filter; `tp_drops` what was dropped because no block was free."""

    def explain(self) -> str:
        """How packets are received, in words."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is a block; only to wait on, after `arm`."""

    def arm(self) -> bool:
        """Prepares for a wait on `fileno`; True if there is a block already, and no wait is needed."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Block: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Batch:
    """Packets that a port received together. Their frames are the program's until this object and all arrays of
    it are gone."""

    @property
    def data(self) -> _Bytes:
        """The part of the port's memory in which the packets lie: uint8, read-only, not copied. Only these
        packets are the batch's: what lies between them belongs to others, and may change at any time."""

    @property
    def packets(self) -> NDArray[np.void]:
        """What is known about each packet, in the order of their arrival: a structured array, read-only, with
        the fields of `Block.packets`. The time is 0 if nothing reports it (see `receive_metadata`)."""

    def column(self, offset: int, dtype: DTypeLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """One header field of all packets: (values, mask); see `Block.column`."""

    def __len__(self) -> int: ...

@disjoint_base
class Port:
    """One queue of one interface, for receiving and sending whole packets.

    Receiving and sending are independent: one thread may receive while another one sends. Iterating gives
    `Batch`es.
    """

    def __new__(
        cls,
        interface: str | Port,
        *,
        queue: int = 0,
        mode: str | None = None,
        filter: str | None = None,
        purpose: Literal["exchange", "capture", "send"] | None = None,
        frame_count: tuple[int, int] | None = None,
        ring_sizes: tuple[int, int] | None = None,
        busy_poll: tuple[float, int] | None = None,
        batch: int = 1024,
        wait: _Wait | None = None,
        promiscuous: bool = False,
        receive_metadata: bool = False,
    ) -> Self:
        """Opens a queue of an interface of this thread's network namespace.

        mode: 'xdp zero-copy', 'xdp copy native', 'xdp copy generic' or 'packet ring'; without it the fastest
            that works for the purpose. In the AF_XDP modes the port alone gets the packets that match.
        filter: an expression of pcap-filter(7), or a program as `tcpdump -ddd` prints it.
        frame_count, ring_sizes: (receive, send). busy_poll: (seconds, packets). batch: the most packets that
            one call returns.

        Unsupported: a capability is missing, or the kernel is too old. OpenError: another refusal. ValueError:
        a setting that is not known.
        """

    @staticmethod
    def memory_pair(
        *,
        frame_count: tuple[int, int] | None = None,
        ring_sizes: tuple[int, int] | None = None,
        batch: int = 1024,
        wait: _Wait | None = None,
    ) -> tuple[Port, Port]:
        """Two linked ports in this process: each receives what the other one sends. For tests, and for
        learning; needs no privileges."""

    @property
    def mode(self) -> str:
        """How packets move between the port and the kernel."""

    @property
    def queue(self) -> int:
        """The port's queue."""

    def balance(self) -> dict[str, int | bool]:
        """Where all frames are: total, free, in_use, lent_rx, lent_tx, retired, and is_balanced: whether each
        was found once. Exact only while no call is running."""

    def receive(self, timeout: float | None = None) -> Batch | None:
        """Waits for packets and returns those that have arrived; None if none came within `timeout` seconds."""

    def try_receive(self) -> Batch | None:
        """As `receive`, without waiting."""

    def send(self, data: _HasBuffer, timeout: float | None = None, *, flush: bool = True) -> int:
        """Sends packets: a row of an array each, or one buffer as one packet; whole Ethernet frames. Their
        bytes are copied into the port's frames, which `ledger` counts. Waits for free frames, for at most
        `timeout` seconds, and returns the number of packets that were queued.

        TooLong: the rows are longer than a packet of this port; then nothing is sent.
        """

    def flush(self, timeout: float | None = None) -> bool:
        """Hands everything queued to the kernel. With a timeout, returns False if something is left then."""

    def drain(self, timeout: float) -> bool:
        """Hands everything queued to the kernel, and waits until it has sent it. Returns False if that is not
        so after `timeout` seconds."""

    def reap(self) -> int:
        """Takes frames back that the kernel has sent. Returns their number."""

    def in_flight(self) -> int:
        """Frames queued, or not yet sent by the kernel."""

    def close(self, timeout: float = 10.0) -> bool:
        """Waits for packets to be sent for at most `timeout` seconds, and closes the port. Returns False if
        something was given up. Batches and arrays that the program has stay as they are."""

    def ledger(self) -> dict[str, Any]:
        """Evidence for every byte, by half: how many were not copied, and how many were, by cause. Beside
        them, how many `send` copied from arrays into frames."""

    def stats(self) -> dict[str, dict[str, int]]:
        """All counters, by half."""

    def explain(self) -> str:
        """The port's mode, and why others were refused, in words."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when packets arrive; only to wait on, after `arm`."""

    def arm(self) -> bool:
        """Prepares for a wait on `fileno`; True if packets are waiting already, and no wait is needed."""

    def _sender_fileno(self) -> int: ...
    def _arm_to_send(self) -> bool: ...

    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...

@final
class Peer:
    """One connection of an endpoint. Equal to another one only if it is the same; a value is never used again for
    another connection."""

    @property
    def index(self) -> int:
        """A number that no other peer of the endpoint has at the same time, from 0 on: for tables. The same as in
        the arrays `peers` of received messages."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Event:
    """What happened to a peer."""

    @property
    def kind(self) -> Literal["connected", "accepted", "writable", "finished", "closed", "lost"]:
        """What happened, in one word."""

    @property
    def peer(self) -> Peer:
        """The peer."""

    @property
    def reason(self) -> str | None:
        """Why it was lost, in words; otherwise None."""

    @property
    def address(self) -> _SocketAddress | None:
        """The peer's address if it is 'connected' or 'accepted'; otherwise None."""

@final
class Message(Buffer):
    """A received message. It is kept in the memory where it was received while this object, or an array or view of
    it, lives; as long the endpoint has less memory to receive into."""

    @property
    def data(self) -> _Bytes:
        """The bytes: uint8, one dimension, read-only; where they were received, or copied once if they came in
        several packets."""

    @property
    def peer(self) -> Peer:
        """The peer that sent it."""

    @property
    def kind(self) -> Literal["plain", "request", "response"]:
        """A request wants a response with the same `call`."""

    @property
    def call(self) -> int | None:
        """The number of the request, for a request or a response; otherwise None."""

    def __bool__(self) -> bool: ...

@disjoint_base
class MessageRows:
    """What is known about messages that were received together, in arrays: a row for each, in the order in which
    they came."""

    @property
    def lengths(self) -> NDArray[np.uint32]:
        """Bytes of each message; read-only."""

    @property
    def peers(self) -> NDArray[np.uint32]:
        """The peer of each message, its `index`; read-only."""

    @property
    def kinds(self) -> NDArray[np.uint32]:
        """What each message is: 0 plain, 1 request, 2 response; read-only."""

    @property
    def calls(self) -> NDArray[np.uint32]:
        """The number of each request or response, 0 for plain messages; read-only."""

    def peer(self, row: int) -> Peer:
        """The peer that sent the message in that row. IndexError: there is no such row."""

    def __len__(self) -> int: ...

@final
class Messages(MessageRows):
    """Messages that were received together, with their bytes. `messages[row]` is the array of one message."""

    @property
    def data(self) -> _Bytes:
        """Messages of one length: two dimensions, a row for each. ValueError: their lengths differ."""

    @property
    def bytes(self) -> _Bytes:
        """The bytes of all messages, one behind another: one dimension."""

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """Where each message begins in `bytes`; read-only."""

    def __getitem__(self, row: int, /) -> _Bytes: ...

@disjoint_base
class Endpoint:
    """One end of any number of connections, which sends messages and receives them: each once, and those of one
    peer in order, whatever the network loses."""

    def __new__(
        cls,
        address: _Address,
        *,
        max_message_bytes: int | None = None,
        datagram_bytes: int | None = None,
        crc: bool = False,
        accept: bool = True,
        peers_max: int | None = None,
        keep_alive: float | None = None,
        dead_after: float | None = None,
        wait: _Wait | None = None,
        memory: int | None = None,
        port: str | dict[str, Any] | None = None,
        streams: bool = True,
    ) -> Self:
        """Binds an endpoint to an address. OpenError: it cannot be bound.

        max_message_bytes: the longest message that is sent and received. datagram_bytes: the longest datagram.
        crc: a checksum of each packet. accept: whether others may connect. peers_max: how many at once.
        keep_alive, dead_after: seconds of silence until a peer is asked for a sign of life, and until it is lost.
        memory: bytes for received messages. port: an interface, or a dictionary of `Port`'s keywords: AF_XDP carries the datagrams.
        streams: whether long messages may go by TCP beside the datagrams.
        """

    def local_addr(self) -> _SocketAddress:
        """The address that it is bound to: (host, port)."""

    def connect(self, to: _Address, timeout: float | None = None) -> Peer:
        """Connects to an address; tries all addresses of a name. Gives up after `timeout` seconds for each, and in
        any case after `dead_after`. NotConnected, TimedOut, TooManyPeers."""

    def start_connect(self, to: _Address) -> Peer:
        """Begins to connect to an address; an event 'connected' or 'lost' follows. TooManyPeers."""

    def send_to(
        self, data: _HasBuffer, to: Peer, timeout: float | None = None, *, flush: bool = True
    ) -> None:
        """Sends one message: the bytes of a buffer or of an array in one piece. While the peer has no room for it,
        this waits, for `timeout` seconds at most. With `flush` false it is queued only.

        A message of 256 B and more is sent from where it lies: the array belongs to the endpoint until the peer has
        acknowledged it. Full: no room in time. TooLong, Finished, Gone.
        """

    def send_many(
        self, data: _HasBuffer, to: Peer, timeout: float | None = None, *, flush: bool = True
    ) -> int:
        """Sends each row of an array as a message, and returns how many rows were queued: all of them, unless
        `timeout` seconds are over before the peer has room for the rest. TooLong, Finished, Gone."""

    def request(
        self, data: _HasBuffer, to: Peer, timeout: float | None = None, *, flush: bool = True
    ) -> int:
        """Sends a request, as `send_to` sends a message, and returns its number, which the response has as `call`."""

    def respond(
        self, data: _HasBuffer, to: Peer, call: int, timeout: float | None = None, *, flush: bool = True
    ) -> None:
        """Sends the response to the request with that `call`, as `send_to` sends a message."""

    def call(self, request: _HasBuffer, to: Peer, timeout: float | None = None) -> Message:
        """Sends a request and waits for its response. Other messages that come meanwhile are received afterwards.
        TimedOut, Lost, TooManyOthers, and as `send_to`."""

    def receive(self, timeout: float | None = None) -> Message | None:
        """Waits for the next message. None if none came within `timeout` seconds, or if an event ended the wait:
        see `poll_event`."""

    def try_receive(self) -> Message | None:
        """The next message if there is one, without waiting."""

    def receive_many(self, timeout: float | None = None) -> Messages:
        """Waits for messages and returns those that have come, copied once, out of the packets that brought them;
        65,536 or some 8 MiB at most. Without a message if none came in time, or if an event ended the wait."""

    def receive_into(self, array: _HasBuffer, timeout: float | None = None) -> MessageRows:
        """Waits for messages and copies those that have come into rows of an array, from the first row on; an array
        of one dimension is one row. ValueError: the next message is longer than a row; it is kept."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until there is a message or an event; returns whether there is one."""

    def poll_event(self) -> Event | None:
        """The oldest event that was not returned yet."""

    def finish(self, peer: Peer) -> None:
        """Ends the direction to a peer, after everything that was sent; the peer gets the event 'finished'. Full,
        Finished, Gone."""

    def abort(self, peer: Peer) -> None:
        """Ends a connection at once: what is in flight or was not received is lost."""

    def flush(self, timeout: float | None = None) -> bool:
        """Hands everything queued to the kernel; what the peer has no room for follows later. With a timeout,
        returns False if the kernel did not take everything in time."""

    def drain(self, timeout: float) -> bool:
        """Sends everything, and waits until the peers have acknowledged it. Returns False if that is not so after
        `timeout` seconds."""

    def reap(self) -> int:
        """Takes back memory of messages that peers have acknowledged. Returns the number of packets."""

    def in_flight(self) -> int:
        """Packets that the peers have not acknowledged yet."""

    def close(self, timeout: float = 10.0) -> bool:
        """Finishes all connections, waits until the peers have acknowledged everything, and closes the endpoint.
        Returns False if something was given up."""

    def peer_stats(self, peer: Peer) -> dict[str, Any] | None:
        """Of the connection to a peer: address, round_trip and round_trip_min (seconds), window_packets, in_flight,
        queued and unread (packets). None if it is not connected."""

    def ledger(self) -> dict[str, int]:
        """Evidence for every byte: how many were not copied, and how many were, by cause. Beside them, how many were
        copied once more, into arrays."""

    def stats(self) -> dict[str, int]:
        """All counters."""

    def explain(self) -> str:
        """How datagrams are carried, and what that was compared with, in words."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when the endpoint has something to do; only to wait on, after `arm`."""

    def arm(self) -> bool:
        """Prepares for a wait on `fileno`; True if there is a message or an event already."""

    def _arm_to_send(self) -> bool: ...
    def _arm_for_outcome(self, peer: Peer) -> bool: ...
    def _arm_for_response(self, call: int, to: Peer) -> Message | None: ...
    def _arm_for_finish(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None: ...
