"""What every program of the workload begins with: its task, and the counters that the bench reads."""
import json
import mmap
import sys

task = json.loads(sys.argv[1])
# Standard input is memory that the bench reads: a file without a disk.
counters = memoryview(mmap.mmap(0, mmap.PAGESIZE)).cast("Q")
PACKETS, READY, STOP = 0, 1, 2


def print_ledger(ledger):
    """Tells the bench at the end what was copied."""
    print(json.dumps(ledger), flush=True)
