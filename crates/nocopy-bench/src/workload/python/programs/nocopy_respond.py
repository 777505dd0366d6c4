"""Answers requests by Endpoint.respond(), blocking."""
import nocopy

total = 0
with nocopy.Endpoint((task["at"], task["port"]), wait="interrupt") as server:
    counters[READY] = 1
    while not counters[STOP]:
        request = server.receive(0.01)
        if request is None:
            continue
        server.respond(request.data, request.peer, request.call)
        total += 1
        counters[PACKETS] = total
    print_ledger({"received": server.ledger()})
