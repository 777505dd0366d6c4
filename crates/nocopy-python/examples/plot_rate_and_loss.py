"""Plots an interface's packets and those that were lost, a second, over time. Needs matplotlib.

    plot_rate_and_loss.py INTERFACE FILE.png [SECONDS]
"""

import sys
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import nocopy
import numpy as np

STEP = 0.1  # seconds


def measure(interface, seconds):
    """The arrival times of all packets, and (time, packets dropped so far) of each look at the counters."""
    times, drops = [], [(time.time(), 0)]
    end = time.time() + seconds
    with nocopy.Capture(interface, snap=64) as capture:
        while (now := time.time()) < end:
            block = capture.receive(min(STEP, end - now))
            if block is not None:
                times.append(block.packets["time"] / 1e9)  # a new array: the block is free again
                del block
            if time.time() - drops[-1][0] >= STEP:
                drops.append((time.time(), capture.stats()["tp_drops"]))
    return np.concatenate([np.empty(0), *times]), np.array(drops)


def main():
    interface, file = sys.argv[1:3]
    times, drops = measure(interface, float(sys.argv[3] if len(sys.argv) > 3 else 10))
    start = drops[0, 0]
    counts, edges = np.histogram(times - start, np.arange(0, drops[-1, 0] - start + STEP, STEP))
    lost = np.diff(drops[:, 1]) / np.diff(drops[:, 0])

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.stairs(counts / STEP, edges, fill=True, color="#9cc4e4", label="received")
    axes.step(drops[1:, 0] - start, lost, where="pre", color="#c1272d", label="lost: no block was free")
    axes.set(xlabel="time (s)", ylabel="packets a second", title=f"{interface}: {len(times)} packets, "
             f"{int(drops[-1, 1])} lost")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
