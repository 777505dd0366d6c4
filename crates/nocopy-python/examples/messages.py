"""Messages between processes: `messages.py ADDRESS` serves, `messages.py ADDRESS PEER` uses it.

The server answers requests (here with the sum of their numbers), and adds up the rows of measurements that
come as messages of their own.
"""

import sys

import numpy as np

import nocopy

ROW = np.dtype([("sensor", "<u4"), ("value", "<f4"), ("time", "<u8")])


def serve(endpoint):
    print("bound to", *endpoint.local_addr(), flush=True)
    rows, total = 0, 0.0
    while True:
        messages = endpoint.receive_many()  # all that are there, in arrays
        for row in np.flatnonzero(messages.kinds == 1):  # requests
            answer = messages[row].view("<u4").sum(dtype="<u8", keepdims=True)
            endpoint.respond(answer, messages.peer(row), messages.calls[row])
        plain = messages.kinds == 0
        if plain.all() and len(messages):
            values = messages.data.view(ROW)["value"]
            rows, total = rows + len(values), total + float(values.sum())
        while event := endpoint.poll_event():
            if event.kind in ("finished", "lost"):
                print(rows, "rows, sum", total)
                return


def use(endpoint, address):
    peer = endpoint.connect(address, timeout=10)
    answer = endpoint.call(np.arange(1000, dtype="<u4"), peer, timeout=10)
    print("sum of a request:", answer.data.view("<u8")[0])
    rows = np.zeros(100_000, ROW)
    rows["sensor"], rows["value"] = 7, 0.5
    endpoint.send_many(rows.view("u1").reshape(-1, ROW.itemsize), peer)  # a row a message


if __name__ == "__main__":
    with nocopy.Endpoint(sys.argv[1]) as endpoint:  # leaving it waits until everything was acknowledged
        use(endpoint, sys.argv[2]) if len(sys.argv) > 2 else serve(endpoint)
