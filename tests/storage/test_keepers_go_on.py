"""A disk or a bucket that fails in the background work is logged and tried again; it ends no node."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from da.core.types import Height
from storage.core.errors import DiskFailed, ShelfUnavailable
from storage.node import auditor, collector, repairer
from storage.node.auditor import Auditor
from storage.node.collector import Collector
from storage.node.health import DiskHealth
from storage.node.losses import Losses
from storage.node.repairer import Repairer

FAILURES = [
    OSError(errno.EIO, "Input/output error"),
    ShelfUnavailable(what="bucket", reason="away"),
    DiskFailed(reason="MDB_CORRUPTED"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("keeper", ["repairer", "auditor", "collector"])
async def test_a_failure_is_not_the_end(keeper: str, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    went_on = asyncio.Event()

    async def fail(*_: Any, **__: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise failure
        went_on.set()
        await asyncio.Event().wait()
        return 0

    for module in (repairer, auditor):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    watch = SimpleNamespace(view=SimpleNamespace(height=Height(5)))
    losses = Losses()
    losses.has_some = lambda: True  # type: ignore[method-assign]
    health = DiskHealth()
    work: Any = SimpleNamespace(watch=watch, engine=SimpleNamespace(losses=losses, health=health), key=b"")
    made: Any
    if keeper == "repairer":
        made, method = Repairer(work, bytes_per_second=1 << 20, every_blocks=1), "_repair"
    elif keeper == "auditor":
        made, method = Auditor(work, every_blocks=0, chance=SimpleNamespace(), accuser=None), "_audit_round"  # type: ignore[arg-type]
    else:
        unused: Any = None
        made = Collector(work.engine, unused, unused, questions=unused, disk=unused, every_blocks=1)
        method = "_sweep"

        async def now(*_: Any) -> Height:
            return Height(5)

        monkeypatch.setattr(collector.Collector, "_wait_for", now)
    monkeypatch.setattr(type(made), method, fail)
    task = asyncio.create_task(made.run())
    try:
        await asyncio.wait_for(went_on.wait(), 5)
        assert not task.done()
        assert health.num_failures == (not isinstance(failure, ShelfUnavailable)), "the disk's failures are counted"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
