"""The example of messages between processes runs against itself."""

import subprocess
import sys
import unittest
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent / "examples" / "messages.py"


class MessageExampleTest(unittest.TestCase):
    def test_a_server_answers_and_adds_up_rows(self):
        command = [sys.executable, "-u", *(f"-W{option}" for option in sys.warnoptions), EXAMPLE]
        server = subprocess.Popen([*command, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(server.kill)
        with server.stdout:
            _, _, host, port = server.stdout.readline().split()
            using = [*command, "127.0.0.1:0", f"{host}:{port}"]
            used = subprocess.run(using, capture_output=True, text=True, timeout=60)
            self.assertEqual((used.returncode, used.stderr), (0, ""))
            self.assertEqual(used.stdout, f"sum of a request: {sum(range(1000))}\n")
            printed, _ = server.communicate(timeout=60)
        self.assertEqual(printed, "100000 rows, sum 50000.0\n")
        self.assertEqual(server.returncode, 0)


if __name__ == "__main__":
    unittest.main()
