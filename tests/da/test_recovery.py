"""Blobs come back without proofs, and the wrong shards are named, by reedsolo."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from da import recovery as recovery_module
from da.cli import app
from da.codec import encode_blob
from da.core.errors import NotEnoughShards, TooManyErrors, WrongShardLength
from da.core.hashing import compute_digest
from da.kernel import check_kernel, open_bundled_isal
from da.recovery import recover_blob
from da.words import correct_word

DATA = random.Random(8).randbytes(30_001)


def make_shards(k: int, n: int, data: bytes = DATA) -> dict[int, bytearray]:
    encoded = encode_blob(data, num_data=k, num_shards=n, leaf_bytes=1024)
    return {index: bytearray(b"".join(pieces)) for index, pieces in enumerate(encoded.shards)}


def recover(shards: Any, k: int, n: int, data: bytes = DATA) -> Any:
    return recover_blob(shards, num_data=k, num_shards=n, size_bytes=len(data))


def test_good_shards_need_no_correction() -> None:
    assert recover(make_shards(4, 8), 4, 8).wrong_bytes == {}


def test_a_shard_that_is_all_wrong_is_named() -> None:
    shards = make_shards(2, 4)
    shards[1] = bytearray(byte ^ 0x5A for byte in shards[1])
    recovered = recover(shards, 2, 4)
    assert recovered.data == DATA
    assert recovered.wrong_bytes == {1: len(shards[1])}


def test_other_shards_wrong_in_other_places() -> None:
    """Every shard is wrong somewhere, no column in more than two: (4, 8) corrects that."""
    shards = make_shards(4, 8)
    for index, shard in shards.items():
        for column in range(index * 100, index * 100 + 50):
            shard[column] ^= 1 + index
            shards[(index + 3) % 8][column] ^= 9
    with mock.patch.object(recovery_module, "COLUMNS_AT_ONCE", 1000):
        recovered = recover(shards, 4, 8)
    assert recovered.data == DATA
    assert recovered.wrong_bytes == dict.fromkeys(range(8), 100)


def test_missing_and_wrong_shards_share_the_parity() -> None:
    shards = make_shards(4, 8)
    del shards[0], shards[5]
    shards[2][77] ^= 255
    recovered = recover(shards, 4, 8)
    assert recovered.data == DATA
    assert recovered.wrong_bytes == {2: 1}
    del shards[1], shards[7]
    assert recover(shards, 4, 8).data != DATA  # no parity is left to see the error: a digest must tell
    del shards[2]
    with pytest.raises(NotEnoughShards):
        recover(shards, 4, 8)


def test_invalid_shards() -> None:
    shards = make_shards(2, 4)
    shards[0][5] ^= 1
    shards[1][5] ^= 2
    with pytest.raises(TooManyErrors, match="2 parity shards correct 1 wrong ones"):
        recover(shards, 2, 4)
    shards[3] = shards[3][:-1]
    with pytest.raises(WrongShardLength, match="shard 3 has 15000 bytes, expected 15001"):
        recover(shards, 2, 4)


def test_stripes_are_put_together() -> None:
    data = random.Random(1).randbytes(3 * 5000 + 17)
    with mock.patch("da.core.blob.STRIPE_BYTES", 5000):
        shards = make_shards(3, 7, data)
        shards[6][2000] ^= 3
        assert recover(shards, 3, 7, data).data == data


def test_threads_do_not_disturb_each_other() -> None:
    """reedsolo's tables are global; codecs of different shape at once gave wrong words."""
    words = {n: bytes(encode_column(4, n)) for n in (6, 8, 12, 20)}
    wrong: list[int] = []

    def run(n: int) -> None:
        for at in range(25):
            word = bytearray(words[n])
            word[at % n] ^= 7
            if correct_word(bytes(word), num_data=4, missing=()).word != words[n]:
                wrong.append(n)
            check_kernel(open_bundled_isal())

    threads = [threading.Thread(target=run, args=(n,)) for n in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def encode_column(k: int, n: int) -> list[int]:
    shards = make_shards(k, n, bytes(range(1, k + 1)))
    return [shards[index][0] for index in range(n)]


def test_command_line(tmp_path: Path) -> None:
    shards = make_shards(2, 4)
    shards[3][9] ^= 1
    for index, shard in shards.items():
        (tmp_path / str(index)).write_bytes(shard)
    out = tmp_path / "out"
    files = [f"{index}={tmp_path / str(index)}" for index in range(4)]
    common = ["recover", *files, "-k", "2", "-n", "4", "--size", str(len(DATA)), "-o", str(out)]
    good = CliRunner().invoke(app, [*common, "--digest", compute_digest(DATA).hex()])
    assert good.exit_code == 0, good.output
    assert out.read_bytes() == DATA
    assert "{'3': 1}" in good.output
    out.unlink()
    bad = CliRunner().invoke(app, [*common, "--digest", "00" * 32, "--json"])
    assert bad.exit_code == 1
    assert "WrongDigest" in bad.output
    assert not out.exists()
    twice = CliRunner().invoke(app, [*common, f"0={tmp_path / '1'}"])
    assert twice.exit_code == 2
    assert "an index is named twice" in twice.output
