"""Asks a DNS server: queries.py ADDRESS COUNT NAME. Queries leave 32 at a time from 4 sockets, and the next 32 when these are answered."""
import socket
import struct
import sys

address, count, name = (sys.argv[1], 53), int(sys.argv[2]), sys.argv[3]
labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
question = labels + b"\0" + struct.pack(">HH", 1, 1)
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
for one in sockets:
    one.connect(address)
    one.settimeout(5)
answered = 0
for number in range(0, count, 32):
    for at in range(number, number + 32):
        header = struct.pack(">HHHHHH", at & 0xFFFF, 0x0100, 1, 0, 0, 0)
        sockets[at % 4].send(header + question)
    for at in range(number, number + 32):
        answered += sockets[at % 4].recv(4096)[3] & 0xF == 0
if answered < count:
    sys.exit(f"{answered} of {count} queries were answered")
