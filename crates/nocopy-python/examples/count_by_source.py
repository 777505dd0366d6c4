"""Captures packets and counts them by their source address (IPv4).

    count_by_source.py INTERFACE [SECONDS]
"""

import ipaddress
import sys
import time

import nocopy
import numpy as np

ETHER_TYPE, IPV4 = 12, 0x0800
SOURCE = 26


def main():
    interface = sys.argv[1]
    end = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 10)
    packets, sent_bytes = {}, {}
    with nocopy.Capture(interface) as capture:
        while (left := end - time.monotonic()) > 0:
            block = capture.receive(left)
            if block is None:
                break
            # No packet is looked at by itself: each line is about all of the block.
            kinds, _ = block.column(ETHER_TYPE, ">u2")
            sources, too_short = block.column(SOURCE, ">u4")
            is_ipv4 = (kinds == IPV4) & ~too_short
            lengths = block.packets["original_length"][is_ipv4]
            found, which, counts = np.unique(sources[is_ipv4], return_inverse=True, return_counts=True)
            sums = np.bincount(which, lengths, len(found))
            for source, count, total in zip(found.tolist(), counts.tolist(), sums.tolist()):
                packets[source] = packets.get(source, 0) + count
                sent_bytes[source] = sent_bytes.get(source, 0) + int(total)
        stats = capture.stats()
    for source in sorted(packets, key=packets.get, reverse=True):
        print(f"{ipaddress.ip_address(source)!s:15} {packets[source]:10} packets {sent_bytes[source]:12} B")
    print(f"{stats['packets']} packets, {stats['tp_drops']} dropped")


if __name__ == "__main__":
    main()
