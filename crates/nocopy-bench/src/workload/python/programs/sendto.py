"""The rows of one array as datagrams, by a loop of sendto()."""
import socket

import numpy

sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to = (task["to"], task["port"])
array = numpy.arange(task["rows"] * task["bytes"], dtype="u4").astype("u1").reshape(task["rows"], -1)
rows = [memoryview(row) for row in array]
batches = [rows[start : start + 64] for start in range(0, len(rows), 64)]
sendto = sender.sendto
total = 0
counters[READY] = 1
while not counters[STOP]:
    for batch in batches:
        for row in batch:
            sendto(row, to)
        total += len(batch)
        counters[PACKETS] = total
        if counters[STOP]:
            break
