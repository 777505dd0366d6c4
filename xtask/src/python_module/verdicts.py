"""Runs the tests in a directory, and prints a line for each: verdicts.py DIRECTORY SECONDS [PATTERN]

The lines are 'passed NAME', 'failed NAME' and 'skipped NAME: WHY'. What is raised where nothing can catch it,
as in a finaliser, is a failure, too. After so many seconds the stacks of all threads are printed, and it ends.
"""

import faulthandler
import gc
import sys
import threading
import unittest


class Verdicts(unittest.TextTestResult):
    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.verdicts = {}

    def addSuccess(self, test):
        super().addSuccess(test)
        self.verdicts.setdefault(test.id(), "passed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.verdicts[test.id()] = f"skipped: {reason}"

    def addError(self, test, error):
        super().addError(test, error)
        self.verdicts[test.id()] = "failed"

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.verdicts[test.id()] = "failed"

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.verdicts[test.id()] = "failed"

    def stopTest(self, test):
        gc.collect()  # what its objects raise at their end belongs to this test
        if uncaught:
            self.verdicts[test.id()] = "failed"
            uncaught.clear()
        super().stopTest(test)


uncaught = []


def note_uncaught(hook):
    def note(what):
        uncaught.append(str(what))
        hook(what)

    return note


def line_of(name, verdict):
    word, _, why = verdict.partition(": ")
    return f"{word} {name}" + (f": {why}" if why else "")


def main(directory, seconds, pattern="test_*.py"):
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    sys.unraisablehook = note_uncaught(sys.unraisablehook)
    threading.excepthook = note_uncaught(threading.excepthook)
    tests = unittest.defaultTestLoader.discover(directory, pattern)
    result = unittest.TextTestRunner(resultclass=Verdicts).run(tests)
    for name, verdict in result.verdicts.items():
        print(line_of(name, verdict))
    return 1 if "failed" in result.verdicts.values() or not result.wasSuccessful() else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
