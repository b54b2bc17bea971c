"""Checks, which print a line each. The first that is false ends the trial."""

from programs import Failed

_passed = 0


def passed():
    return _passed


def check(what, holds, found=""):
    global _passed
    if not holds:
        raise Failed(f"{what}: {found}" if found != "" else what)
    _passed += 1
    print(f"ok    {what}", flush=True)


def equal(what, found, expected):
    check(what, found == expected, f"expected {expected!r}, found {found!r}")
