"""Scapy over sockets of nocopy: who answers to ARP, and what passes meanwhile. Needs scapy.

    scapy_on_nocopy.py INTERFACE ADDRESS...
"""

import sys

import nocopy.scapy
from scapy.config import conf
from scapy.layers.l2 import ARP, Ether
from scapy.sendrecv import AsyncSniffer, srp


def main():
    conf.iface, conf.verb = sys.argv[1], 0
    nocopy.scapy.use()  # all that follows is scapy's own
    sniffer = AsyncSniffer(lfilter=lambda packet: ARP in packet)
    sniffer.start()
    requests = [Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst=address) for address in sys.argv[2:]]
    answers, missing = srp(requests, timeout=2)
    for _request, answer in answers:
        print(f"{answer[ARP].psrc} is at {answer[ARP].hwsrc}")
    for request in missing:
        print(f"{request[ARP].pdst} does not answer")
    print(f"{len(sniffer.stop())} ARP packets passed")


if __name__ == "__main__":
    main()
