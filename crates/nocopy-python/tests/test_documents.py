"""Each program in the documents runs as it is written, and prints something."""

import contextlib
import io
import re
import unittest
from pathlib import Path

CRATE = Path(__file__).parent.parent
DOCUMENTS = [CRATE / "README.md", CRATE.parent.parent / "docs" / "python.md"]
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs_of(document):
    """The programs of a document, each with the line before it."""
    text = document.read_text()
    return [(text.count("\n", 0, found.start(1)), found.group(1)) for found in PROGRAM.finditer(text)]


class DocumentsTest(unittest.TestCase):
    def test_every_program_runs_as_written(self):
        for document in DOCUMENTS:
            programs = programs_of(document)
            self.assertTrue(programs, document)
            for line, program in programs:
                with self.subTest(f"{document.name}:{line}"):
                    printed = io.StringIO()
                    # Empty lines in front: an error then names the line of the document.
                    code = compile("\n" * line + program, document, "exec")
                    try:
                        with contextlib.redirect_stdout(printed):
                            exec(code, {"__name__": "__main__"})
                    except ModuleNotFoundError as lacking:
                        self.skipTest(f"lacks {lacking.name}")
                    self.assertNotEqual(printed.getvalue(), "")


if __name__ == "__main__":
    unittest.main()
