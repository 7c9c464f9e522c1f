"""Background work leaves the disk and the link to those who wait: at most so many bytes a second."""

from __future__ import annotations

import asyncio


class Pacer:
    """Spaces work out; of one event loop."""

    def __init__(self, bytes_per_second: int) -> None:
        """Let ``bytes_per_second`` pass, at least 1."""
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def wait(self, num_bytes: int) -> None:
        """Return when the bytes asked for before have had their time, and count these."""
        now = asyncio.get_running_loop().time()
        start = max(now, self._free_at)
        self._free_at = start + num_bytes / self._bytes_per_second
        if start > now:
            await asyncio.sleep(start - now)
