"""The one exception a user is meant to read: what is wrong, where, and the way out."""

from __future__ import annotations


class GenselectError(Exception):
    """A problem the user can act on.

    Args:
        message: What is wrong, naming the file and the row where there is one.
        hint: What to do about it, one sentence. Printed on a line of its own.
    """

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}"

    def __reduce__(self) -> tuple[type[GenselectError], tuple[str, str]]:
        # Exceptions are pickled by their args alone, which would lose the hint on the way out of a worker process.
        return (type(self), (self.message, self.hint))
