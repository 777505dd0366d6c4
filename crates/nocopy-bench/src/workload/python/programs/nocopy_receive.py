"""Datagrams as arrays with a row for each, by receive(), without a copy."""
import nocopy

total = 0
with nocopy.UdpSocket((task["at"], task["port"]), receive_buffer=task["receive_buffer"]) as receiver:
    counters[READY] = 1
    while not counters[STOP]:
        for burst in receiver.receive(0.01):
            total += len(burst.data)
        counters[PACKETS] = total
    print_ledger(receiver.ledger())
