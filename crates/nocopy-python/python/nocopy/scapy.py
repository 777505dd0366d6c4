"""Scapy on nocopy: after `use()`, `sniff`, `AsyncSniffer`, `srp` and `sendp` receive from captures of ours.

    import nocopy.scapy
    from scapy.all import sniff

    nocopy.scapy.use()
    packets = sniff(iface="eth0", count=1000)

Packets wait in a ring of 64 MiB while scapy dissects those before them; what finds no room there is counted:
`socket.ins.stats()["tp_drops"]`. Only interfaces with Ethernet headers can be used, and the loopback.
"""

from __future__ import annotations

import socket
import time
from select import select
from typing import Any

import nocopy
from scapy.config import conf
from scapy.data import ETH_P_ALL, MTU
from scapy.error import Scapy_Exception
from scapy.interfaces import network_name
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.supersocket import SuperSocket

__all__ = ["L2ListenSocket", "L2Socket", "use"]

ETHERNET_HEADER_BYTES = 14


def use() -> None:
    """Makes scapy open sockets of ours: sets `conf.L2listen` and `conf.L2socket`."""
    conf.L2listen = L2ListenSocket
    conf.L2socket = L2Socket


class L2ListenSocket(SuperSocket):
    """Receives whole packets, those that this host sends included. `ins` is the `nocopy.Capture`.

    Raises nocopy.Unsupported without CAP_NET_RAW, and Scapy_Exception for a filter that is not understood.
    """

    desc = "read packets at layer 2 from a capture of nocopy, also those that go out"
    outgoing = True

    # Small blocks and many: one that holds few packets when its time is over takes no more room.
    blocks = (128 << 10, 512)
    # An answer is seen after so many seconds at most.
    block_timeout = 0.01

    def __init__(
        self,
        iface: Any = None,
        type: int = ETH_P_ALL,
        promisc: bool | None = None,
        filter: str | None = None,
        nofilter: int = 0,
        monitor: bool | None = None,
    ) -> None:
        if monitor:
            raise Scapy_Exception("monitor: not available on sockets of nocopy; set the card to monitor mode")
        self.iface = network_name(iface or conf.iface)
        self.type = type
        self.promisc = bool(conf.sniff_promisc if promisc is None else promisc)
        self.LL = Ether
        self.lvl = 2
        self.outs: Any = None
        self.ins: Any = self._capture(_whole_filter(type, filter, nofilter))
        self._next_packet = self.ins.next_packet

    def _capture(self, filter: str | None) -> nocopy.Capture:
        try:
            return nocopy.Capture(
                str(self.iface),
                filter=filter,
                promiscuous=self.promisc,
                outgoing=self.outgoing,
                blocks=self.blocks,
                block_timeout=self.block_timeout,
            )
        except ValueError as error:
            raise Scapy_Exception(f"Cannot set filter: {error}") from error

    def recv_raw(self, x: int = MTU) -> tuple[type[Packet], bytes, float]:
        """The next packet: its class, at most `x` of its bytes, and its time in seconds since 1970. Waits for
        one."""
        found = self._next_packet()
        while found is None:
            if not self.ins.arm():
                select([self.ins], [], [], conf.recv_poll_rate)
            found = self._next_packet()
        data, time_ns, _original_length, _outgoing = found
        return self.LL, data if len(data) <= x else data[:x], time_ns * 1e-9

    def _has_packet(self) -> bool:
        try:
            return bool(self.ins.arm())
        except OSError:
            return True  # recv_raw raises it

    @staticmethod
    def select(sockets: list[SuperSocket], remain: float | None = None) -> list[SuperSocket]:
        """Those sockets from which `recv` returns at once. Waits `conf.recv_poll_rate` seconds at most."""
        ours = [each for each in sockets if isinstance(each, L2ListenSocket)]
        ready: set[SuperSocket] = {each for each in ours if each._has_packet()}
        # The kernel does not say that an interface was removed: that is looked at in each call.
        wait = 0.0 if ready else min(conf.recv_poll_rate, conf.recv_poll_rate if remain is None else remain)
        others = [each for each in sockets if each not in ready]
        readable = select(others, [], [], wait)[0] if others else []
        ready.update(
            each for each in readable if not isinstance(each, L2ListenSocket) or each._has_packet()
        )
        return [each for each in sockets if each in ready]

    def send(self, x: Packet) -> int:
        """Refuses: this socket only receives."""
        raise Scapy_Exception("Can't send anything with L2ListenSocket")

    def close(self) -> None:
        """Closes the capture, and the socket that sends."""
        if self.closed:
            return
        self.closed = True
        for part in (getattr(self, "ins", None), getattr(self, "outs", None)):
            if part is not None:
                part.close()


class L2Socket(L2ListenSocket):
    """Receives and sends whole packets; its own are not received. `outs` is a packet socket of Python's:
    as fast as a port for packets sent one by one, and listening sockets see them, which a port goes past."""

    desc = "read packets at layer 2 from a capture of nocopy, and write them"
    outgoing = False

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        try:
            # Protocol 0: it receives nothing.
            self.outs = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.outs.bind((self.iface, 0))
        except BaseException:
            self.close()
            raise

    def send(self, x: Packet) -> int:
        """Sends a packet, and returns its length. Those shorter than an Ethernet header are padded."""
        data = bytes(x)
        if len(data) < ETHERNET_HEADER_BYTES:
            data = data.ljust(conf.min_pkt_size, b"\0")
        try:
            x.sent_time = time.time()
        except AttributeError:
            pass
        return int(self.outs.send(data))


def _whole_filter(type: int, filter: str | None, nofilter: int) -> str | None:
    """The filter that all settings together mean: of this socket, and of scapy for all sockets."""
    parts = [f"({filter})"] if filter else []
    if not nofilter and conf.except_filter:
        parts.append(f"not ({conf.except_filter})")
    if type == ETH_P_ALL:
        return " and ".join(parts) or None
    if parts:
        return " and ".join([f"ether proto {type}", *parts])
    # As a program, so that nothing has to compile it: the type at byte 12.
    return f"4,40 0 0 12,21 0 1 {type},6 0 0 262144,6 0 0 0"
