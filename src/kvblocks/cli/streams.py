"""The standard streams when they are closed, full, or read by someone who has enough."""

from __future__ import annotations

import errno
import io
import os
import sys

_CLOSED = ((0, "stdin", os.O_WRONLY, "r"), (1, "stdout", os.O_RDONLY, "w"), (2, "stderr", os.O_WRONLY, "w"))


def prepare() -> None:
    """Give every closed standard stream a place, where using it fails with EBADF.

    Without one, the next file that is opened would get its number, and Python's own object for it is None. Standard
    error has nobody to tell of its failure: what is written to it is dropped. A character that the encoding of standard
    output lacks becomes a question mark.
    """
    for number, name, flags, mode in _CLOSED:
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def finish(code: int) -> int:
    """Write out what is still to be written; the exit code, which is 2 when it was 0 and that failed."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return code or output_failed(error)
    return code


def output_failed(error: OSError) -> int:
    """Say what became of standard output, and drop what is left for it; the exit code.

    A reader that has enough (a closed pipe) is no error.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno == errno.EPIPE:
        return 0
    if error.errno == errno.EBADF:
        return fail("standard output is closed; redirect it to a file, or to /dev/null if nobody reads it")
    return fail(f"standard output cannot be written: {error.strerror}; redirect it to a file on a disk with room")


def fail(message: str, code: int = 2) -> int:
    """One line on standard error, if it takes one; the exit code."""
    try:
        print(f"kvblocks: {printable(message)}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    return code


def printable(text: str) -> str:
    """The text with control characters escaped, so that what a file says cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
