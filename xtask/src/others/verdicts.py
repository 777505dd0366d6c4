"""Runs a module of Python's own tests, or a single test, and writes a line for each test: verdicts.py FILE NAME LEFT-OUT

Left out are tests whose names contain that."""
import sys
import unittest

from test import support

support.use_resources = ["network"]  # there is none, but some modules want to be told so


class Verdicts(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self.file = file
        self.worst = {}

    def note(self, test, verdict):
        self.worst[test.id()] = verdict

    def startTest(self, test):
        super().startTest(test)
        self.note(test, "passed")

    def stopTest(self, test):
        super().stopTest(test)
        print(test.id(), self.worst.pop(test.id()), file=self.file, flush=True)

    def addError(self, test, error):
        super().addError(test, error)
        if test.id() in self.worst:
            self.note(test, "failed")
        else:  # a class or a module that cannot be prepared
            print(test.id().replace(" ", "-"), "failed", file=self.file, flush=True)
        print(self._exc_info_to_string(error, test))

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")
        print(self._exc_info_to_string(error, test))

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.note(test, "failed")
            print(self._exc_info_to_string(error, test))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        if test.id() in self.worst:
            self.note(test, "skipped")

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.note(test, "failed as expected")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "passed against expectation")


def wanted(tests, left_out):
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            yield unittest.TestSuite(wanted(test, left_out))
        elif left_out not in test.id():
            yield test


if __name__ == "__main__":
    path, name, left_out = sys.argv[1:]
    with open(path, "w") as file:
        tests = unittest.defaultTestLoader.loadTestsFromName(name)
        unittest.TestSuite(wanted(tests, left_out)).run(Verdicts(file))
