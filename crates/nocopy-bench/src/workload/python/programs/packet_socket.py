"""Packets of an interface counted by source: a loop of recv_into() on a packet socket, and numpy."""
import socket
import struct
from collections import Counter

import numpy

ETH_P_ALL, SO_RCVBUFFORCE = 3, 33
SOURCE_AT = 26
receiver = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, task["buffer"])
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))
receiver.bind((task["interface"], 0))

array = numpy.zeros((task["rows"], task["bytes"]), "u1")
column = array[:, SOURCE_AT : SOURCE_AT + 4]
rows = [memoryview(row) for row in array]
recv_into = receiver.recv_into
by_source, total = Counter(), 0
counters[READY] = 1
while not counters[STOP]:
    count = 0
    try:
        for count, row in enumerate(rows):
            recv_into(row)
        count += 1
    except BlockingIOError:
        pass
    sources, packets = numpy.unique(column[:count].copy().view(">u4"), return_counts=True)
    by_source.update(dict(zip(sources.tolist(), packets.tolist())))
    total += count
    counters[PACKETS] = total
assert sum(by_source.values()) == total
