"""Receives datagrams into chunks by the number that each carries: readout.py [ADDRESS [CHUNKS]]

A datagram is 8 bytes of number, big-endian, and 1384 bytes of samples, as send_array.py sends them.
"""

import sys

import nocopy

ROWS, ROW_BYTES = 4096, 1384


def main(address="127.0.0.1:9000", chunks=0):
    socket = nocopy.UdpSocket(address, receive_buffer=8 << 20)
    placed = socket.place(
        number=nocopy.Field(0, ">u8"), payload=slice(8, None), shape=(ROWS, ROW_BYTES // 2), dtype=">u2", ring=4
    )
    print(f"{address}: receiving chunks of {ROWS} rows")
    with placed:
        seen = 0
        while not chunks or seen < int(chunks):
            # None after a second without one that is complete: then what has come is taken as it is.
            chunk = placed.receive(timeout=1.0) or placed.finish()
            if chunk is None:
                continue
            seen += 1
            # Only rows that came; the others are zeros. No copy, until a row is missing.
            rows = chunk.array if chunk.filled == ROWS else chunk.array[chunk.present]
            print(f"rows from {chunk.first}: {chunk.filled} of {ROWS}, mean {rows.mean():.1f}")
        print({name: count for name, count in placed.stats().items() if count})


if __name__ == "__main__":
    main(*sys.argv[1:])
