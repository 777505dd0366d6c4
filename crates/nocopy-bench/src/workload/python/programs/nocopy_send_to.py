"""The rows of one array as datagrams, by send_to()."""
import nocopy
import numpy

to = (task["to"], task["port"])
array = numpy.arange(task["rows"] * task["bytes"], dtype="u4").astype("u1").reshape(task["rows"], -1)
total = 0
with nocopy.UdpSocket() as sender:
    counters[READY] = 1
    while not counters[STOP]:
        sender.send_to(array, to)
        total += len(array)
        counters[PACKETS] = total
    sender.drain(1.0)
    print_ledger(sender.ledger())
