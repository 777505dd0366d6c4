"""Payloads into the rows of chunks, by heap and offset, with place()."""
import nocopy
import numpy

heap, offset = nocopy.Field(task["heap_at"], ">u6"), nocopy.Field(task["offset_at"], ">u6")
total = 0
receiver = nocopy.UdpSocket((task["at"], task["port"]), receive_buffer=task["receive_buffer"])
with receiver.place(
    number=(heap, offset),
    rows_per_heap=task["heap_rows"],
    payload=slice(task["header_bytes"], None),
    shape=(task["heaps"] * task["heap_rows"], task["payload_bytes"]),
    dtype="u1",
    ring=task["ring"],
) as placed:
    counters[READY] = 1
    while not counters[STOP]:
        chunk = placed.receive(0.01)
        if chunk is not None:
            total += numpy.count_nonzero(chunk.present)
            counters[PACKETS] = total
            del chunk
    print_ledger({"received": placed.ledger()})
