"""Receives messages as arrays, by Endpoint.receive_many()."""
import nocopy

total = 0
with nocopy.Endpoint((task["at"], task["port"])) as receiver:
    counters[READY] = 1
    while not counters[STOP]:
        messages = receiver.receive_many(0.01)
        if len(messages):
            assert messages.data.shape[1] == task["bytes"]
            total += len(messages)
            counters[PACKETS] = total
    print_ledger({"received": receiver.ledger()})
