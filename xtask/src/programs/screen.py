"""The connections on the last screen of tcptrack, from what it wrote to a VT52: screen.py FILE."""
import collections
import re
import sys

COLUMNS = 94
MOVES = {"A": (-1, 0), "B": (1, 0), "C": (0, 1), "D": (0, -1)}
screen = collections.defaultdict(lambda: [" "] * COLUMNS)
row = column = 0
written = open(sys.argv[1], errors="replace").read()
for line, place, code, text in re.findall("\33Y(.)(.)|\33(.)|(.)", written, re.S):
    if line:
        row, column = ord(line) - 32, ord(place) - 32
    elif code == "H":
        row = column = 0
    elif code == "K":
        screen[row][column:] = [" "] * (COLUMNS - column)
    elif code in MOVES:
        row, column = row + MOVES[code][0], column + MOVES[code][1]
    elif text == "\r":
        column = 0
    elif text == "\n":
        row += 1
    elif text == "\b":
        column -= 1
    elif text and column < COLUMNS:
        screen[row][column] = text
        column += 1
for cells in screen.values():
    words = "".join(cells).split()
    if words and "10.77" in words[0]:
        print(*words[:3])
