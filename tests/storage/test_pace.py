"""A body that comes too slowly holds neither a slot nor room (quota, slots, both ports)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from da.protocol import PutRequest, encode_put
from storage.core import pace
from storage.core.errors import QuotaExceeded, StoreBusy, UploadTooSlow
from storage.core.pace import MIN_BYTES_PER_SECOND, WINDOW_MILLISECONDS, Pace
from storage.node import engine as engines


def test_invalid_pace_ends_within_a_window() -> None:
    body = Pace(expected_bytes=1 << 30)
    body.note(1, 1)
    with pytest.raises(UploadTooSlow, match="131072 bytes a second"):
        body.note(1, body.compute_patience())


def test_a_fast_start_buys_no_pause() -> None:
    body = Pace(expected_bytes=1 << 30)
    body.note(1 << 29, WINDOW_MILLISECONDS)
    with pytest.raises(UploadTooSlow):
        body.note(0, WINDOW_MILLISECONDS)


def test_just_fast_enough_goes_on_for_ever_and_a_late_end_is_fine() -> None:
    body = Pace(expected_bytes=1 << 24)
    while body.received_bytes < (1 << 24) - MIN_BYTES_PER_SECOND:
        body.note(MIN_BYTES_PER_SECOND, 1_000)
    body.note((1 << 24) - body.received_bytes, WINDOW_MILLISECONDS)


def test_own_work_is_not_waited_for() -> None:
    """Only waits are noted: without any, a byte at a time is as good as all of them."""
    body = Pace(expected_bytes=1_000)
    for _ in range(1_000):
        body.note(1, 0)


def test_an_announcement_holds_little_room(open_engine: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "AHEAD_BYTES", 64 << 10)
    engine = open_engine(capacity_bytes=4 << 20)
    large, other = make_shard(b"x" * (3 << 20)), make_shard(b"y" * (2 << 20))
    with engine.upload(large.offer) as slow:
        assert engine.get_quota().reserved_bytes < 100 << 10
        slow.write(bytes(large.body[:10]))
        with engine.upload(other.offer) as upload:
            upload.write(other.body)
            engine.commit(upload)
        with pytest.raises((QuotaExceeded, StoreBusy)):  # the room went to who was there with bytes
            slow.write(bytes(large.body[10:]))
    assert engine.get_quota().reserved_bytes == 0


def test_what_comes_whole_is_reserved_whole(open_engine: Any, make_shard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "AHEAD_BYTES", 64 << 10)
    engine = open_engine(capacity_bytes=4 << 20)
    shard = make_shard(b"x" * (3 << 20))
    with engine.upload(shard.offer) as upload:
        for start in range(0, len(shard.body), 100_000):
            upload.write(bytes(shard.body[start : start + 100_000]))
            quota = engine.get_quota()
            assert start < quota.reserved_bytes <= quota.capacity_bytes
        engine.commit(upload)
    quota = engine.get_quota()
    assert quota.reserved_bytes == 0
    assert quota.used_bytes > 3 << 20


async def test_dribble_over_http_is_cut(serve: Any, make_shard: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(pace, "WINDOW_MILLISECONDS", 300)
    shard = make_shard(b"x" * 1_000_000)
    offer = shard.offer
    put = PutRequest(
        blob=offer.blob,
        seat=offer.shard,
        epoch=offer.epoch,
        tier=offer.tier,
        expiry=offer.expiry,
        header=offer.header,
    )
    path, fields = encode_put(put)
    lines = [f"PUT {path} HTTP/1.1", "Host: node", f"Content-Length: {len(shard.body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    async with serve(body_timeout_seconds=30.0) as node:
        host, port = node.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

        async def dribble() -> None:
            while True:
                writer.write(b"x")
                await asyncio.sleep(0.02)

        task = asyncio.create_task(dribble())
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 429")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        assert node.engine.get_quota().reserved_bytes == 0


async def test_invalid_slots_of_one_address(serve: Any) -> None:
    async with serve(max_uploads=4) as node:
        admission = node.server._admission
        with (
            admission.take_slot("1.1.1.1"),
            admission.take_slot("1.1.1.1"),
            admission.take_slot("1.1.1.1"),
            admission.take_slot("2.2.2.2"),
        ):
            pass
        with admission.take_slot("1.1.1.1"), admission.take_slot("1.1.1.1"), admission.take_slot("1.1.1.1"):
            with (
                pytest.raises(StoreBusy, match=r"from 1\.1\.1\.1 would be 4, at most 3"),
                admission.take_slot("1.1.1.1"),
            ):
                pass
            with admission.take_slot("2.2.2.2"):
                pass
