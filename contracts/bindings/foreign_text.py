r"""Text that a stranger wrote, made fit for a terminal and a log: from the chain, a store's or a node's answer.

Nothing that is no visible character goes out as it is: a line break would forge a line of a log, ESC recolours,
clears or renames a terminal, and marks of direction turn what is read around.  They stay readable, as escapes.
"""

from __future__ import annotations

import logging

MAX_CHARACTERS = 2_000
"""Of one stranger's text, unless told otherwise; the longest message of our own is shorter."""

_BREAKS = "\n\t"
"""What text of several lines may hold besides."""


def show_foreign(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    r"""Return text as one line without control characters, and no longer than is readable.

    >>> show_foreign("x\x1b[31mred\nround 7: all is well")
    'x\\x1b[31mred\\nround 7: all is well'
    """
    shown = text if len(text) <= max_characters else text[:max_characters] + "…"
    return shown if shown.isprintable() else "".join(map(_show_character, shown))


def show_lines(text: str) -> str:
    r"""Return text whose line breaks and tabs are meant, without other control characters.

    >>> show_lines("one\n\ttwo\x07")
    'one\n\ttwo\\x07'
    """
    return "".join(each if each in _BREAKS else _show_character(each) for each in text)


class ForeignTextFormatter(logging.Formatter):
    """Writes each record as one line, whoever wrote parts of its message; only a traceback adds lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        return show_foreign(super().formatMessage(record), max_characters=16 * MAX_CHARACTERS)

    def formatException(self, ei: object) -> str:
        """Return the traceback, whose last line holds what an error says."""
        return show_lines(super().formatException(ei))  # type: ignore[arg-type]


def _show_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode()
