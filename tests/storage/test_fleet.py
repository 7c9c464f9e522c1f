"""Four real node processes and da's client: dead, lying, too few, expired, stopped, chain away."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from contracts.bindings.errors import ContractError
from contracts.bindings.types import Blob, BlobState, OwnerAccount, StorageNode, StorageNodeState
from da.blocking import BlobClient
from da.core.certificate import decode_certificate, verify_certificate
from da.core.errors import FaultKind, HeaderUnavailable, NotEnoughReceipts, NotEnoughShards
from da.core.types import BlobId, Committee, Epoch, Height, Seat, ShardIndex, Tier
from da.protocol import PutRequest, encode_put, shard_path
from storage.client import CERTIFY_BLOCKS, StorageClient
from storage.core.errors import BlobReleased, NoCommittee, NotFunded, UnknownBlob
from storage.core.expiry import GRACE_BLOCKS, PINNED
from storage.mover import StoreMovePort

pytestmark = pytest.mark.integration

GENESIS_HASH = bytes(range(32))
DATA = os.urandom(300_000)


@pytest.fixture
def client() -> Iterator[BlobClient]:
    with BlobClient(deadline_seconds=5.0) as opened:
        yield opened


@pytest.fixture(scope="module")
def four(shared_fleet: Any) -> list[Any]:
    """Four nodes; a test that ends one starts it again under its name."""
    nodes: list[Any] = shared_fleet.start_all([f"node-{index}" for index in range(4)])
    return nodes


def disperse(client: BlobClient, committee: Committee, *, tier: Tier = Tier.HOT, expiry: int = 1_000) -> Any:
    return client.disperse(
        DATA, committee=committee, genesis_hash=GENESIS_HASH, tier=tier, expiry=Height(expiry), leaf_bytes=1024
    )


def get_status(node: Any) -> dict[str, Any]:
    with urllib.request.urlopen(node.url + "/v1/status", timeout=5) as answer:
        value: dict[str, Any] = json.load(answer)
        return value


def make_committee(fleet: Any, nodes: list[Any]) -> Committee:
    made: Committee = fleet.seat(nodes)
    return made


class Liar:
    """Passes requests on to a real node, and flips one byte of every shard that comes back."""

    def __init__(self, honest_url: str) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with urllib.request.urlopen(honest_url + self.path, timeout=5) as answer:
                    body = bytearray(answer.read())
                if re.search(r"/shards/\d+$", self.path):
                    body[len(body) // 2] ^= 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def test_what_was_never_certified_gives_its_room_back(
    shared_fleet: Any, four: list[Any], client: BlobClient, wait_until: Any
) -> None:
    """Case 56: uploaded, and the client died before it registered; the unfinished lease ends by height."""
    committee = make_committee(shared_fleet, four)
    certificate = disperse(client, committee, tier=Tier.TEMPORARY, expiry=200)
    again = disperse(client, committee, tier=Tier.TEMPORARY, expiry=210)
    assert again.terms.blob == certificate.terms.blob
    assert all(get_status(node)["space"]["num_shards"] == 1 for node in four)
    shared_fleet.save_chain(height=210 + GRACE_BLOCKS - 1)
    wait_until(lambda: all(get_status(node)["chain"]["height"] == 229 for node in four), "the height is known")
    assert all(get_status(node)["space"]["num_shards"] == 1 for node in four)
    shared_fleet.save_chain(height=210 + GRACE_BLOCKS)
    wait_until(lambda: all(get_status(node)["space"]["used_bytes"] == 0 for node in four), "the room comes back")
    with pytest.raises((HeaderUnavailable, NotEnoughShards)):
        client.retrieve(certificate.terms.blob, committee=committee, max_bytes=len(DATA))


def test_reads_go_on_without_the_chain_and_writes_with_the_known_committee(
    shared_fleet: Any, four: list[Any], client: BlobClient, wait_until: Any
) -> None:
    committee = make_committee(shared_fleet, four)
    blob = disperse(client, committee).terms.blob
    shared_fleet.save_chain(is_down=True)
    wait_until(lambda: not any(get_status(node)["chain"]["is_reachable"] for node in four), "the chain is away")
    assert client.retrieve(blob, committee=committee, max_bytes=len(DATA)).data == DATA
    assert len(disperse(client, committee, expiry=2_000).signatures) >= 3
    assert four[2].stop() == 0
    four[2] = shared_fleet.start("node-2")
    with urllib.request.urlopen(four[2].url + shard_path(blob, 2), timeout=5) as answer:
        assert answer.status == 200
    assert get_status(four[2])["chain"]["height"] is None
    height = shared_fleet.chain["height"] + 5
    shared_fleet.save_chain(is_down=False, height=height)
    wait_until(lambda: get_status(four[2])["chain"]["height"] == height, "it catches up")


def test_expiry_follows_the_chain_and_downtime_revives_nothing(
    shared_fleet: Any, four: list[Any], client: BlobClient, wait_until: Any
) -> None:
    """Case 53: pinned stays; released goes; a node that slept over it does not bring it back, nor sign it again."""
    committee = make_committee(shared_fleet, four)
    pinned = disperse(client, committee, expiry=300).terms.blob
    shared_fleet.save_chain(releases={pinned.hex(): PINNED}, height=5_000)
    wait_until(lambda: all(get_status(node)["chain"]["height"] == 5_000 for node in four), "the height is known")
    assert client.retrieve(pinned, committee=committee, max_bytes=len(DATA)).data == DATA
    assert four[0].stop() == 0
    shared_fleet.save_chain(releases={pinned.hex(): 5_010}, height=5_200)
    wait_until(
        lambda: all(get_status(node)["space"]["num_shards"] == 0 for node in four[1:]), "the released blob is deleted"
    )
    four[0] = shared_fleet.start("node-0")
    wait_until(lambda: get_status(four[0])["space"]["num_shards"] == 0, "the sleeper deletes it too")
    with pytest.raises(NotEnoughReceipts, match="expiry 300 is not after height 5201"):
        disperse(client, make_committee(shared_fleet, four), expiry=300)


class ChainDouble:
    """ChainClient as far as StorageClient uses it, over the fleet's chain; certificates are verified as there."""

    def __init__(self, fleet: Any, committee: Committee) -> None:
        self._fleet = fleet
        self._committee = committee
        self.address = "0x" + "11" * 20
        self.storage = self
        self.records: dict[bytes, Blob] = {}
        self.payments: list[int] = []
        self.funds = 10**18

    def balance(self, address: str) -> int:
        assert address == self.address
        return self.funds

    def gas_price(self) -> int:
        return 10**6

    def owner_account(self, owner: str) -> OwnerAccount:
        return OwnerAccount(num_blobs=len(self.records), paid=sum(self.payments), refunded=0)

    def describe_chain(self) -> str:
        return "on chain id 7 at http://chain:8545"

    def height(self) -> int:
        height: int = self._fleet.chain["height"]
        return height

    def genesis_hash(self) -> bytes:
        return GENESIS_HASH

    def epoch(self) -> int:
        return self._committee.epoch

    def committee(self, epoch: int) -> tuple[StorageNode, ...]:
        if epoch != self._committee.epoch:
            return ()
        return tuple(
            StorageNode(
                operator="0x",
                key=seat.key,
                url=seat.url + "/",
                capacity_bytes=1,
                state=StorageNodeState.REGISTERED,
                registered_height=1,
            )
            for seat in self._committee.seats
        )

    def quote(self, tier: int, size_bytes: int, blocks: int) -> int:
        return (tier + 1) * size_bytes * blocks

    def tiers(self) -> tuple[Any, ...]:
        return ()

    def lease_expiry(self, blob: bytes, owner: str) -> int:
        return self.blob(blob).expiry_height

    def blob(self, blob: bytes) -> Blob:
        return self.records.get(blob) or Blob(
            blob=blob,
            owner="0x",
            size_bytes=0,
            tier=0,
            epoch=0,
            certified_height=0,
            expiry_height=0,
            release_height=0,
            state=BlobState.UNKNOWN,
            paid=0,
            signers=0,
            signed_height=0,
        )

    def send(self, contract: str, function: str, encoded: bytes, *, value: int) -> Any:
        """Be the Sender too."""
        assert (contract, function) == ("Storage", "certify")
        certificate = decode_certificate(encoded)
        verify_certificate(certificate, self._committee, genesis_hash=GENESIS_HASH, height=Height(self.height()))
        terms = certificate.terms
        fee = self.quote(int(terms.tier), terms.size_bytes, terms.expiry - self.height())
        assert fee <= value
        self.payments.append(fee)
        self.records[terms.blob] = Blob(
            blob=terms.blob,
            owner=self.address,
            size_bytes=terms.size_bytes,
            tier=int(terms.tier),
            epoch=terms.epoch,
            certified_height=self.height(),
            expiry_height=terms.expiry,
            release_height=terms.expiry,
            state=BlobState.LIVE,
            paid=fee,
            signers=sum(1 << seat for seat, _ in certificate.signatures),
            signed_height=terms.expiry,
        )
        return SimpleNamespace(event=lambda name: SimpleNamespace(fields={"fee": fee}))


def test_put_and_get_pay_once(shared_fleet: Any, four: list[Any], client: BlobClient) -> None:
    """Case 56 for people: a put that was cut is repeated, resumes, and pays once."""
    committee = make_committee(shared_fleet, four)
    chain: Any = ChainDouble(shared_fleet, committee)
    storage = StorageClient(chain, client)
    stored = storage.put(DATA, tier=Tier.TEMPORARY, blocks=500, sender=chain)
    assert stored.fee == stored.max_fee == len(DATA) * (500 + CERTIFY_BLOCKS)
    again = storage.put(DATA, tier=Tier.TEMPORARY, blocks=500, sender=chain)
    assert (again.blob, again.fee, again.expiry) == (stored.blob, 0, stored.expiry)
    assert len(chain.payments) == 1
    hot = storage.put(DATA, tier=Tier.HOT, blocks=500, sender=chain)
    assert hot.fee > 0, "another promise is another lease"
    assert storage.get(stored.blob).data == DATA
    assert storage.stat(stored.blob).size_bytes == len(DATA)
    empty = storage.put(b"", tier=Tier.HOT, blocks=500, sender=chain)
    assert storage.get(empty.blob).data == b""


def test_a_put_without_money_sends_nothing(shared_fleet: Any, four: list[Any], client: BlobClient) -> None:
    chain: Any = ChainDouble(shared_fleet, make_committee(shared_fleet, four))
    storage, data = StorageClient(chain, client), b"x" * 100_000
    lease = {"tier": Tier.TEMPORARY, "blocks": 500, "sender": chain}
    needed = storage.quote(tier=Tier.TEMPORARY, size_bytes=len(data), blocks=500 + CERTIFY_BLOCKS) + 21_000 * 10**6
    chain.funds, before = needed - 1, client.bytes_sent
    with (
        mock.patch.object(client, "identify", side_effect=AssertionError("this account has nothing that is paid")),
        pytest.raises(NotFunded, match="on chain id 7 at http://chain:8545, a temporary lease of 100000 bytes needs"),
    ):
        storage.put(data, **lease)
    assert (client.bytes_sent, chain.payments) == (before, [])
    chain.funds = needed
    stored = storage.put(data, **lease)
    chain.funds = 0
    again = storage.put(data, **lease)
    assert (again.blob, again.fee) == (stored.blob, 0), "what is paid is not asked for again"
    for more in ({"blocks": 5_000}, {"tier": Tier.HOT}):
        with pytest.raises(NotFunded):
            storage.put(data, **{**lease, **more})
    with pytest.raises(NotFunded, match="10 blocks more of blob"):
        storage.renew(stored.blob, blocks=10, sender=chain)
    assert len(chain.payments) == 1


def test_an_archive_without_money_reads_nothing(
    shared_fleet: Any, four: list[Any], client: BlobClient, tmp_path: Path
) -> None:
    """A watch would read the same blob again every few seconds."""
    chain: Any = ChainDouble(shared_fleet, make_committee(shared_fleet, four))
    storage = StorageClient(chain, client)
    stored = storage.put(b"x" * 100_000, tier=Tier.HOT, blocks=500, sender=chain)
    port = StoreMovePort(chain, storage, chain, directory=tmp_path)
    chain.funds, before = 0, client.bytes_received
    with pytest.raises(NotFunded, match=f"keeping blob {stored.blob.hex()} cold needs"):
        port.copy(stored.blob, None)
    assert client.bytes_received == before


class MovingChain(ChainDouble):
    """Its committee changes twice while the first certificate is on its way."""

    def __init__(self, fleet: Any, nodes: list[Any]) -> None:
        super().__init__(fleet, make_committee(fleet, nodes))
        self._nodes = nodes
        self.num_refused = 0

    def send(self, contract: str, function: str, encoded: bytes, *, value: int) -> Any:
        if not self.num_refused:
            got = self._committee.epoch
            for _ in range(2):
                self._nodes = [*self._nodes[1:], self._nodes[0]]
                self._committee = make_committee(self._fleet, self._nodes)
            self.num_refused += 1
            raise ContractError("WrongEpoch", {"expected": self._committee.epoch, "got": got}, "WrongEpoch")
        return super().send(contract, function, encoded, value=value)


def test_a_put_follows_a_committee_that_changes_meanwhile(
    shared_fleet: Any, four: list[Any], client: BlobClient
) -> None:
    """All seats have other nodes: the same bytes go to them, one lease is paid, and one change alone is no matter."""
    chain: Any = MovingChain(shared_fleet, list(four))
    storage = StorageClient(chain, client)
    stored = storage.put(DATA, tier=Tier.HOT, blocks=500, sender=chain)
    assert (chain.num_refused, len(chain.payments)) == (1, 1)
    assert stored.certificate.terms.epoch == chain.epoch()
    assert storage.get(stored.blob).data == DATA
    previous = chain._committee
    make_committee(shared_fleet, list(four))
    certificate = disperse(client, previous, expiry=9_000)
    verify_certificate(certificate, previous, genesis_hash=GENESIS_HASH, height=Height(chain.height()))
    make_committee(shared_fleet, list(four))

    def disperse_until_refused() -> None:
        for expiry in range(9_500, 9_700):  # until the nodes have heard of the change
            disperse(client, previous, expiry=expiry)

    with pytest.raises(NotEnoughReceipts, match="NotMySeat: epoch"):
        disperse_until_refused()


def test_get_says_what_the_chain_knows(shared_fleet: Any, four: list[Any], client: BlobClient) -> None:
    chain: Any = ChainDouble(shared_fleet, make_committee(shared_fleet, four))
    storage = StorageClient(chain, client)
    with pytest.raises(UnknownBlob, match="00ff"):
        storage.get(BlobId(b"\x00\xff" * 16))
    stored = storage.put(b"soon gone", tier=Tier.HOT, blocks=500, sender=chain)
    chain.records[stored.blob] = replace(chain.records[stored.blob], state=BlobState.RELEASED, release_height=77)
    with pytest.raises(BlobReleased, match="height 77"):
        storage.get(stored.blob)
    with pytest.raises(NoCommittee, match="epoch 999"):
        storage.committee(Epoch(999))
    cold = storage.put(b"x" * 9_000, tier=Tier.COLD, blocks=500, sender=chain)
    assert storage.get(cold.blob).data == b"x" * 9_000


def test_one_dead_and_one_lying_then_two_dead(shared_fleet: Any, four: list[Any], client: BlobClient) -> None:
    """Cases 78 and 64: reads are right and name both culprits; two dead certify nothing, and the error says who."""
    committee = make_committee(shared_fleet, four)
    certificate = disperse(client, committee, expiry=9_000)
    verify_certificate(certificate, committee, genesis_hash=GENESIS_HASH, height=Height(5_300))
    assert len(certificate.signatures) == 4
    order = [event["event"] for event in four[2].read_trace() if event["blob"] == certificate.terms.blob.hex()]
    assert order[-5:] == ["received", "synced", "renamed", "indexed", "signed"]
    four[0].kill()
    liar = Liar(four[1].url)
    try:
        seats = list(committee.seats)
        seats[1] = Seat(index=ShardIndex(1), key=seats[1].key, url=liar.url)
        retrieved = client.retrieve(
            certificate.terms.blob, committee=replace(committee, seats=tuple(seats)), max_bytes=len(DATA)
        )
    finally:
        liar.close()
    assert retrieved.data == DATA
    assert {fault.seat: fault.kind for fault in retrieved.report.faults} == {
        0: FaultKind.UNREACHABLE,
        1: FaultKind.BAD_SHARD,
    }
    assert retrieved.report.seats == (2, 3)
    four[3].kill()
    chain: Any = ChainDouble(shared_fleet, committee)
    with pytest.raises(NotEnoughReceipts, match="nothing is certified"):
        StorageClient(chain, client).put(b"not enough", tier=Tier.HOT, blocks=500, sender=chain)
    assert chain.payments == []
    with pytest.raises(NotEnoughReceipts, match="expected at least 3; nothing is certified") as caught:
        client.disperse(b"another", committee=committee, genesis_hash=GENESIS_HASH, tier=Tier.HOT, expiry=Height(9_000))
    assert {fault.seat for fault in caught.value.faults} >= {0, 3}
    for index in (0, 3):
        assert four[index].url in str(caught.value)


def test_a_stop_is_orderly_even_with_an_upload_under_way_and_a_chain_that_hangs(
    fleet: Any, make_shard: Any, get_files: Any, wait_until: Any
) -> None:
    node = fleet.start("single")
    fleet.seat([node])
    shard = make_shard(os.urandom(1_000_000))
    offer = shard.offer
    path, fields = encode_put(
        PutRequest(
            blob=offer.blob,
            seat=offer.shard,
            epoch=offer.epoch,
            tier=offer.tier,
            expiry=offer.expiry,
            header=offer.header,
        )
    )
    host, port = node.url.removeprefix("http://").split(":")
    head = f"PUT {path} HTTP/1.1\r\nHost: node\r\nContent-Length: {len(shard.body)}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n"
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(head.encode() + shard.body[:600_000])
        wait_until(lambda: get_status(node)["space"]["reserved_bytes"] > 0, "the upload is admitted")
        fleet.save_chain(hang_seconds=60)
        wait_until(fleet.chain_path.with_suffix(".hanging").exists, "a question hangs")
        started = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0
        assert time.monotonic() - started < 5
    assert get_files(node.home) == {}


def test_two_nodes_share_neither_home_nor_port(fleet: Any) -> None:
    node = fleet.start("single")
    config = json.loads(node.config.read_text())
    port = int(node.url.rpartition(":")[2])
    for name, changes, words in (
        ("home", {}, "is in use by another storage-node"),
        ("port", {"home": config["home"] + "-2", "port": port}, f"can't listen on 127.0.0.1:{port}: Address already"),
    ):
        path = node.config.with_name(f"{name}.json")
        path.write_text(json.dumps({**config, **changes}))
        second = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("node_process.py")), str(path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert second.returncode != 0
        assert words in second.stderr
