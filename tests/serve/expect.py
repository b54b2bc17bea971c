"""Checks, which print a line each. The first that is false ends the trial."""

import sys

from programs import Failed

_passed = 0


def check(what, holds, found=""):
    global _passed
    if not holds:
        raise Failed(f"{what}: {found}" if found != "" else what)
    _passed += 1
    print(f"ok    {what}", flush=True)


def equal(what, found, expected):
    check(what, found == expected, f"expected {expected!r}, found {found!r}")


def end(failure):
    """Prints the failure, if there is one, and ends the trial."""
    if failure is not None:
        print(f"FALSE {failure}", flush=True)
    print(f"{_passed} passed, {1 if failure else 0} failed")
    sys.exit(1 if failure else 0)
