"""The examples of captures and of scapy run, and print what they should."""

import importlib.util
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from veth import Pair, PairTest, packet

EXAMPLES = Path(__file__).parent.parent / "examples"


def ipv4(source, payload):
    """A packet from that address, whose checksums nobody reads."""
    header = bytes.fromhex("4500 0000 0000 0000 4011 0000") + bytes(source) + bytes([10, 99, 0, 1])
    return packet(header + payload, 0x0800)


class PacketExamplesTest(PairTest):
    def need(self, module):
        if importlib.util.find_spec(module) is None:
            self.skipTest(f"lacks {module}")

    def run_example(self, name, *arguments, packets=()):
        """What it prints while packets are sent again and again. It runs in this thread's namespace."""
        options = (f"-W{option}" for option in sys.warnoptions)
        command = [sys.executable, *options, EXAMPLES / name, *arguments]
        ended = threading.Event()

        def send():
            while not ended.wait(0.01):
                for each in packets:
                    self.raw.send(each)

        sending = threading.Thread(target=send)
        sending.start()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        finally:
            ended.set()
            sending.join()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_count_by_source(self):
        packets = [ipv4([10, 0, 0, 1], bytes(26)), ipv4([10, 0, 0, 2], b""), packet(b"not IPv4")] * 2
        packets += [ipv4([10, 0, 0, 1], b"")] * 2
        printed = self.run_example("count_by_source.py", Pair.LEFT, "0.4", packets=packets).splitlines()
        self.assertEqual([line.split()[0] for line in printed[:2]], ["10.0.0.1", "10.0.0.2"])
        first, second = (list(map(int, line.split()[1:4:2])) for line in printed[:2])
        self.assertGreater(first[0], second[0])
        self.assertEqual(second[1], 34 * second[0])
        self.assertTrue(34 * first[0] < first[1] < 60 * first[0])
        self.assertRegex(printed[2], r"^\d+ packets, 0 dropped$")
        self.assertEqual(len(printed), 3)

    def test_plot_rate_and_loss(self):
        self.need("matplotlib")
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder) / "rate.png"
            self.run_example("plot_rate_and_loss.py", Pair.LEFT, picture, "0.5", packets=[packet(b"plotted")])
            self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_scapy_on_nocopy(self):
        self.need("scapy")
        right = Pair.ADDRESSES[Pair.RIGHT]
        printed = self.run_example("scapy_on_nocopy.py", Pair.LEFT, right)
        self.assertIn(f"{right} is at {Pair.MACS[Pair.RIGHT].hex(':')}\n", printed)
        self.assertRegex(printed, r"\d+ ARP packets passed")


if __name__ == "__main__":
    unittest.main()
