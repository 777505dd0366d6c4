"""Packets of an interface counted by source, by nocopy.Capture and numpy."""
from collections import Counter

import nocopy
import numpy

SOURCE_AT = 26
BLOCK_BYTES = 1 << 18
by_source, total = Counter(), 0
blocks = (BLOCK_BYTES, task["buffer"] // BLOCK_BYTES)
with nocopy.Capture(task["interface"], blocks=blocks, block_timeout=0.01) as capture:
    counters[READY] = 1
    while not counters[STOP]:
        block = capture.receive(0.01)
        if block is None:
            continue
        column, is_short = block.column(SOURCE_AT, ">u4")
        sources, packets = numpy.unique(column[~is_short], return_counts=True)
        by_source.update(dict(zip(sources.tolist(), packets.tolist())))
        total += len(block)
        counters[PACKETS] = total
        del block
    assert sum(by_source.values()) == total
