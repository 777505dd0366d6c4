"""Traffic of hosts that do not exist, always the same: traffic.py INTERFACE ROUNDS|more. The host at the other end answers none of it."""
import socket
import struct
import sys
import time


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2 + len(data) % 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def mac(host):
    return b"\x02\x11\x22\x33\x44" + bytes([host])


def address(host):
    return bytes([10, 77, 0, host])


def ipv4(source, target, protocol, payload, number, ends=None):
    src, dst = ends or (address(source), address(target))
    if protocol in (6, 17):
        at = 16 if protocol == 6 else 6
        pseudo = src + dst + struct.pack("!BBH", 0, protocol, len(payload))
        payload = payload[:at] + struct.pack("!H", checksum(pseudo + payload)) + payload[at + 2:]
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), number, 0x4000, 64, protocol, 0) + src + dst
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    to = b"\xff" * 6 if dst == b"\xff" * 4 else mac(target)
    return to + mac(source) + b"\x08\x00" + head + payload


def udp(source, target, ports, data, number, ends=None):
    return ipv4(source, target, 17, struct.pack("!HHHH", *ports, 8 + len(data), 0) + data, number, ends)


def tcp(source, target, ports, sequence, acknowledged, flags, data=b"", options=b""):
    words = 5 + len(options) // 4
    head = struct.pack("!HHIIBBHHH", *ports, sequence, acknowledged, words << 4, flags, 64240, 0, 0)
    return ipv4(source, target, 6, head + options + data, sequence & 0xFFFF)


FIN, SYN, PUSH, ACK = 1, 2, 8, 16
# What Linux sends: the maximum segment size, selective acknowledgements, a time, window scaling.
OPTIONS = bytes.fromhex("020405b40402080a0000100000000000") + bytes.fromhex("01030307")
ANSWER = b"HTTP/1.1 200 OK\r\nServer: Apache\r\nContent-Length: 6\r\nContent-Type: text/plain\r\n\r\nbytes\n"


def connection(number):
    """A request and its answer: 8 packets."""
    client, server, ports, back = 20, 21, (30000 + number, 80), (80, 30000 + number)
    request = b"GET /page-%03d HTTP/1.1\r\nHost: server.example\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n" % number
    c, s = 1000 * number + 1, 5000 * number + 1
    yield tcp(client, server, ports, c - 1, 0, SYN, options=OPTIONS)
    yield tcp(server, client, back, s - 1, c, SYN | ACK, options=OPTIONS)
    yield tcp(client, server, ports, c, s, ACK)
    yield tcp(client, server, ports, c, s, PUSH | ACK, request)
    c += len(request)
    yield tcp(server, client, back, s, c, PUSH | ACK, ANSWER)
    s += len(ANSWER)
    yield tcp(client, server, ports, c, s, FIN | ACK)
    yield tcp(server, client, back, s, c + 1, FIN | ACK)
    yield tcp(client, server, ports, c + 1, s + 1, ACK)


def arp(number):
    """A new host asks for another."""
    host = 100 + number % 100
    return b"\xff" * 6 + mac(host) + b"\x08\x06" + struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) \
        + mac(host) + address(host) + b"\0" * 6 + address(99) + b"\0" * 18


def dhcp(number):
    head = struct.pack("!BBBBIHH", 1, 1, 6, 0, 0x1000 + number, 0, 0) + b"\0" * 16 + mac(number) + b"\0" * 202
    data = head + bytes.fromhex("63825363350101") + b"\x0c\x05" + b"host%d" % (number % 10) + b"\xff"
    return udp(number, 0, (68, 67), data, number, (b"\0" * 4, b"\xff" * 4))


def echo(number):
    head = struct.pack("!BBHHH", 8, 0, 0, 7, number) + b"echo" * 8
    return ipv4(20, 21, 1, head[:2] + struct.pack("!H", checksum(head)) + head[4:], number)


def traffic(rounds):
    for number in range(rounds):
        yield from connection(number)
        yield udp(20, 21, (5000, 9000), b"datagram %d of the traffic\n" % number, number)
        yield udp(22, 23, (5000 + number, 9001), b"x" * (20 + 12 * number), number)
        yield arp(number)
        yield dhcp(number)
        yield echo(number)
    yield udp(20, 21, (5000, 9000), b"the last datagram\n", rounds)


wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((sys.argv[1], 0))
if sys.argv[2] == "more":
    # Of another host, until this is ended: some programs show packets only when others follow.
    while True:
        for number in range(50):
            wire.send(udp(98, 99, (9, 9), b"more", number).ljust(60, b"\0"))
        time.sleep(0.05)
for frame in traffic(int(sys.argv[2])):
    wire.send(frame.ljust(60, b"\0"))
