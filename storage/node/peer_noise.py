"""What other people's programs do wrong is one line of the log, and not a traceback of ours."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

MAX_CHARACTERS = 200
"""Of what a peer has sent, in the log."""


class PeerNoise(logging.Filter):
    """For aiohttp's server log: requests that are no HTTP, and clients that went away before they had their answer."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten a record that only tells of a peer; other records stay as they are."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ConnectionError):
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.msg = f"{record.getMessage()}: {' '.join(str(error).split())[:MAX_CHARACTERS]}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return True
