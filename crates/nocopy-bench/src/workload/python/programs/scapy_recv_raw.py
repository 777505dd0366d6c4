"""Packets by recv_raw() of scapy's socket, or of the one that nocopy puts in its place."""
import logging
import signal
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


class Stopped(Exception):
    """The bench has ended the trial."""


def end_if_asked(_signal, _frame):
    if counters[STOP]:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stopped


# recv_raw() waits for a packet, and none comes at the end.
signal.signal(signal.SIGALRM, end_if_asked)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
total = 0
counters[READY] = 1
try:
    while True:
        for _ in range(64):
            listener.recv_raw()
        total += 64
        counters[PACKETS] = total
except Stopped:
    listener.close()
