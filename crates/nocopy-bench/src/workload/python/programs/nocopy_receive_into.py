"""Datagrams into the rows of one array, by receive_into()."""
import nocopy
import numpy

array = numpy.zeros((task["rows"], task["bytes"]), "u1")
total = 0
with nocopy.UdpSocket((task["at"], task["port"]), receive_buffer=task["receive_buffer"]) as receiver:
    counters[READY] = 1
    while not counters[STOP]:
        filled = 0
        while filled < len(array) and not counters[STOP]:
            received = len(receiver.receive_into(array[filled:], 0.01))
            filled += received
            total += received
            counters[PACKETS] = total
    print_ledger(receiver.ledger())
