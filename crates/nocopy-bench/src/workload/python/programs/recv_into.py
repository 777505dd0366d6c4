"""Datagrams into the rows of one array, by a loop of recv_into(): the rows are made beforehand."""
import socket
import struct

import numpy

SO_RCVBUFFORCE = 33
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, task["receive_buffer"])
# Not settimeout(): with that, Python calls poll() before each recv_into().
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 10_000))
receiver.bind((task["at"], task["port"]))

array = numpy.zeros((task["rows"], task["bytes"]), "u1")
rows = [memoryview(row) for row in array]
batches = [rows[start : start + 64] for start in range(0, len(rows), 64)]
recv_into = receiver.recv_into
total = 0
counters[READY] = 1
while not counters[STOP]:
    for batch in batches:
        count = 0
        try:
            for count, row in enumerate(batch):
                recv_into(row)
            count += 1
        except BlockingIOError:
            if counters[STOP]:
                break
        total += count
        counters[PACKETS] = total
