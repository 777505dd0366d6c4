"""Sends the rows of an array as numbered datagrams: send_array.py [ADDRESS [ROWS]]"""

import sys

import numpy as np

import nocopy

ROW_BYTES = 1384


def main(to="127.0.0.1:9000", rows="40960"):
    rows = int(rows)
    # Headers and samples side by side, so that a row is a datagram as it is sent.
    datagrams = np.zeros(rows, dtype=[("number", ">u8"), ("samples", ">u2", ROW_BYTES // 2)])
    datagrams["number"] = np.arange(rows)
    datagrams["samples"] = np.arange(rows)[:, None] % 1000
    with nocopy.UdpSocket(connect=to) as socket:
        array = datagrams.view("u1").reshape(rows, 8 + ROW_BYTES)
        for start in range(0, rows, 1024):
            socket.send(array[start : start + 1024])  # not copied by us; see the ledger
        socket.drain(5.0)
        print(f"{rows} datagrams to {to}")
        print(socket.explain())
        print({cause: count for cause, count in socket.ledger()["sent"].items() if count})


if __name__ == "__main__":
    main(*sys.argv[1:])
