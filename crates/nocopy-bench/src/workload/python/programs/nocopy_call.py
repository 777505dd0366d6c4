"""Requests, each answered before the next, by Endpoint.call(), blocking."""
import nocopy

message, total = bytes(task["bytes"]), 0
client = nocopy.Endpoint(("0.0.0.0", 0), accept=False, wait="interrupt")
server = client.connect((task["at"], task["port"]), 10)
counters[READY] = 1
while not counters[STOP]:
    client.call(message, server, 10)
    total += 1
    counters[PACKETS] = total
client.close(0.2)
