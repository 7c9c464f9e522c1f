"""A node signs no shard that is off the code, and leaves nothing of it behind."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from da.codec import compute_shard_root, encode_blob
from da.core.blob import compute_blob_id, encode_header
from da.core.folds import compute_fold
from da.core.types import Epoch, Height, ShardIndex, Tier
from da.folding import make_seed
from storage.core.errors import BadlyEncoded
from storage.node.upload import ShardOffer

DATA = random.Random(5).randbytes(40_000)


def test_a_badly_encoded_shard_is_refused_and_a_good_one_kept(open_engine: Any) -> None:
    engine = open_engine()
    encoded = encode_blob(DATA, num_data=2, num_shards=4, leaf_bytes=1024)
    shards = [bytearray(b"".join(pieces)) for pieces in encoded.shards]
    shards[3][123] ^= 64
    roots = tuple(compute_shard_root(shard, leaf_bytes=1024) for shard in shards)
    header = dataclasses.replace(encoded.header, shard_roots=roots)
    seed = make_seed(header)
    header = dataclasses.replace(header, folds=tuple(compute_fold(seed, bytes(shard)) for shard in shards[:2]))

    def put(index: int) -> None:
        offer = ShardOffer(
            blob=compute_blob_id(header),
            shard=ShardIndex(index),
            header=header,
            header_bytes=encode_header(header),
            shard_bytes=len(shards[index]),
            tier=Tier.HOT,
            epoch=Epoch(1),
            expiry=Height(1000),
        )
        with engine.upload(offer) as upload:
            upload.write(shards[index])
            engine.commit(upload)

    with pytest.raises(BadlyEncoded, match="shard 3 is off the code"):
        put(3)
    assert engine.get_quota().used_bytes == engine.get_quota().reserved_bytes == 0
    assert engine.index.get(compute_blob_id(header), ShardIndex(3)) is None
    put(2)
    assert engine.index.get(compute_blob_id(header), ShardIndex(2)) is not None
