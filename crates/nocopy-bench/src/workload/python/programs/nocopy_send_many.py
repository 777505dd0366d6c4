"""Sends the rows of an array as messages, by Endpoint.send_many()."""
import nocopy
import numpy

messages, total = numpy.zeros((4096, task["bytes"]), "u1"), 0
sender = nocopy.Endpoint(("0.0.0.0", 0), accept=False)
peer = sender.connect((task["at"], task["port"]), 10)
counters[READY] = 1
while not counters[STOP]:
    total += sender.send_many(messages, peer, 0.01)
    counters[PACKETS] = total
sender.close(0.2)
