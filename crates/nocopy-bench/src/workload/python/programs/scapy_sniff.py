"""Packets of an interface counted by source, by scapy's sniffer."""
import logging
import socket
import time
from collections import Counter

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import IP, AsyncSniffer, conf

SO_RCVBUFFORCE = 33
by_source = Counter()


def count_packet(packet):
    by_source[packet[IP].src if IP in packet else None] += 1


listener = conf.L2listen(iface=task["interface"])
listener.ins.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, task["buffer"])
sniffer = AsyncSniffer(opened_socket=listener, store=False, prn=count_packet)
sniffer.start()
counters[READY] = 1
while not counters[STOP]:
    time.sleep(0.005)
    counters[PACKETS] = by_source.total()
sniffer.stop()
