"""Two network namespaces with a pair of virtual interfaces between them, for tests. Needs root."""

import contextlib
import ctypes
import os
import socket
import struct
import unittest

CLONE_NEWNET = 0x40000000
RTM_NEWLINK, RTM_NEWADDR = 16, 20
REQUEST, ACK, CREATE, EXCLUSIVE = 1, 4, 0x400, 0x200
IFLA_ADDRESS, IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_FD = 1, 3, 18, 28
INFO_KIND, INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFA_ADDRESS, IFA_LOCAL = 1, 2
IFF_UP = 1

LIBC = ctypes.CDLL(None, use_errno=True)


def _check(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _attribute(kind, payload):
    length = 4 + len(payload)
    return struct.pack("HH", length, kind) + payload + bytes(-length % 4)


def _interface(index=0, up=False):
    return struct.pack("BxHiII", 0, 0, index, IFF_UP if up else 0, IFF_UP)


def _request(kind, flags, body):
    """Sends one request to the kernel, and raises its refusal."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        header = struct.pack("IHHII", 16 + len(body), kind, REQUEST | ACK | flags, 1, 0)
        netlink.send(header + body)
        refusal = struct.unpack_from("i", netlink.recv(65536), 16)[0]
        if refusal != 0:
            raise OSError(-refusal, os.strerror(-refusal))


class Pair:
    """`left` and `right` are namespaces with the interfaces nc0 and nc1, and what a test opens in them. The
    namespaces end with the last thing that uses them: nothing is left, however the test ends."""

    LEFT, RIGHT = "nc0", "nc1"
    MACS = {"nc0": bytes.fromhex("020000000a00"), "nc1": bytes.fromhex("020000000a01")}
    ADDRESSES = {"nc0": "10.99.0.1", "nc1": "10.99.0.2"}

    def __init__(self):
        self.files = contextlib.ExitStack()

    def __enter__(self):
        home = self._namespace()
        try:
            self.right, self.left = self._new_namespace(), self._new_namespace()
            peer = _interface() + _attribute(IFLA_IFNAME, b"nc1\0") + _attribute(
                IFLA_NET_NS_FD, struct.pack("I", self.right)
            ) + _attribute(IFLA_ADDRESS, self.MACS["nc1"])
            info = _attribute(INFO_KIND, b"veth") + _attribute(INFO_DATA, _attribute(VETH_INFO_PEER, peer))
            link = _attribute(IFLA_IFNAME, b"nc0\0") + _attribute(IFLA_ADDRESS, self.MACS["nc0"])
            _request(RTM_NEWLINK, CREATE | EXCLUSIVE, _interface() + link + _attribute(IFLA_LINKINFO, info))
        finally:
            _check(LIBC.setns(home, CLONE_NEWNET))
        for place, name in (self.left, self.LEFT), (self.right, self.RIGHT):
            with self.inside(place):
                self._address(name)
                set_up(name, True)
        return self

    def __exit__(self, *_raised):
        self.files.close()

    def _address(self, name):
        address = socket.inet_aton(self.ADDRESSES[name])
        body = struct.pack("BBBBi", socket.AF_INET, 24, 0, 0, socket.if_nametoindex(name))
        body += _attribute(IFA_LOCAL, address) + _attribute(IFA_ADDRESS, address)
        _request(RTM_NEWADDR, CREATE, body)

    def _namespace(self):
        file = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        self.files.callback(os.close, file)
        return file

    def _new_namespace(self):
        _check(LIBC.unshare(CLONE_NEWNET))
        # Else the host sends packets of its own.
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
            setting.write("1")
        return self._namespace()

    @contextlib.contextmanager
    def inside(self, namespace):
        """This thread is in that namespace; threads that it starts are, too."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _check(LIBC.setns(namespace, CLONE_NEWNET))
            yield
        finally:
            _check(LIBC.setns(home, CLONE_NEWNET))
            os.close(home)

    def raw_socket(self, namespace, name, kind=0):
        """A packet socket at that end: sends whole packets, and receives those of that EtherType."""
        with self.inside(namespace):
            raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        raw.settimeout(10)
        raw.bind((name, kind))
        self.files.callback(raw.close)
        return raw


def set_up(name, up):
    """Sets an interface of this namespace up or down."""
    _request(RTM_NEWLINK, 0, _interface(socket.if_nametoindex(name), up))


class PairTest(unittest.TestCase):
    """A test with a pair of interfaces: `self.pair`; `self.raw` sends from the right end."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest("lacks root: a network namespace of its own")
        self.pair = self.enterContext(Pair())
        self.raw = self.pair.raw_socket(self.pair.right, Pair.RIGHT)
        self.enterContext(self.pair.inside(self.pair.left))


def packet(payload, kind=0x88B5):
    """A packet from the right end to the left end."""
    return Pair.MACS[Pair.LEFT] + Pair.MACS[Pair.RIGHT] + kind.to_bytes(2, "big") + payload
