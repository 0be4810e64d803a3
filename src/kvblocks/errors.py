"""The error family of kvblocks: every message names the field, the value and the fix.

`UsageError` and its children mean that a caller broke a rule that the message states; nothing was changed.
`IntegrityError` means that kvblocks itself is wrong. The command line turns every `KVBlocksError` into one line on
standard error and exit code 2.
"""

from __future__ import annotations


class KVBlocksError(Exception):
    """Base of all errors that kvblocks raises on purpose."""


class UsageError(KVBlocksError, ValueError):
    """An argument is outside its documented range, or two arguments contradict each other."""


class RequestError(UsageError):
    """A call about one request breaks a rule; names the request, the value and the rule."""

    def __init__(self, request_id: str, message: str) -> None:
        self.request_id = request_id
        super().__init__(f"request {request_id!r}: {message}")


class PoolError(UsageError):
    """A call about blocks breaks a rule of the pool; names the block and the rule."""


class IntegrityError(KVBlocksError, AssertionError):
    """`check()` found a structure that contradicts itself: a bug in kvblocks, please report it."""


class TraceError(KVBlocksError, ValueError):
    """A trace cannot be read; names the file, the line, the field and the fix.

    `line` counts from 1 and is None when the fault is about the whole file; `field` is None when no field is to blame.
    """

    def __init__(self, path: str, message: str, *, line: int | None = None, field: str | None = None) -> None:
        self.path, self.line, self.field = path, line, field
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {message}" if field is None else f"{where}: field {field!r}: {message}")


class MissingExtraError(KVBlocksError, ImportError):
    """An optional package is not installed; names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed: pip install 'kvblocks[{extra}]'"
        )
