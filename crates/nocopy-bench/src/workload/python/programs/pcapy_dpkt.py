"""Packets of an interface counted by source, by pcapy-ng, which calls libpcap, and dpkt."""
import select
from collections import Counter

import dpkt
import pcapy

by_source, total = Counter(), 0


def count_packet(header, data):
    global total
    packet = dpkt.ethernet.Ethernet(data)
    by_source[packet.data.src if isinstance(packet.data, dpkt.ip.IP) else None] += 1
    total += 1
    if not total & 63:
        counters[PACKETS] = total


reader = pcapy.create(task["interface"])
reader.set_snaplen(65535)
reader.set_buffer_size(task["buffer"])
reader.set_timeout(10)
reader.activate()
reader.setnonblock(1)  # else dispatch() waits for a packet, whatever the timeout says
counters[READY] = 1
while not counters[STOP]:
    if reader.dispatch(4096, count_packet) == 0:
        select.select([reader.getfd()], [], [], 0.01)
    counters[PACKETS] = total
