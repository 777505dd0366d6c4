"""The examples of a readout and of its sender run against each other."""

import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


class DatagramExamplesTest(unittest.TestCase):
    def test_a_sent_array_is_read_out_in_chunks(self):
        address = "127.0.0.1:39171"
        options = ["-u", *(f"-W{option}" for option in sys.warnoptions)]  # -u: lines are printed at once
        readout = subprocess.Popen(
            [sys.executable, *options, EXAMPLES / "readout.py", address, "1"], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(readout.kill)
        with readout.stdout:
            self.assertIn("receiving chunks", readout.stdout.readline())
            sending = [sys.executable, *options, EXAMPLES / "send_array.py", address, "4096"]
            sent = subprocess.run(sending, capture_output=True, text=True, timeout=60)
            self.assertEqual((sent.returncode, sent.stderr), (0, ""))
            printed, _ = readout.communicate(timeout=60)
        self.assertRegex(printed, r"rows from 0: \d+ of 4096, mean ")
        self.assertEqual(readout.returncode, 0)


if __name__ == "__main__":
    unittest.main()
