"""Packets by recv_raw() of scapy's socket, or of the one that nocopy puts in its place."""
import logging
import socket

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import conf

SO_RCVBUFFORCE = 33
if task["by_nocopy"]:
    import nocopy.scapy

    nocopy.scapy.use()
listener = conf.L2listen(iface=task["interface"])
if not task["by_nocopy"]:
    listener.ins.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, task["buffer"])
total = 0
counters[READY] = 1
while not counters[STOP]:
    # As scapy's sniffer does it: recv_raw() alone would wait for ever at the end.
    if listener.select([listener], 0.01):
        for _ in range(64):
            if listener.recv_raw()[1] is None:
                break
            total += 1
            if not listener.select([listener], 0):
                break
        counters[PACKETS] = total
listener.close()
