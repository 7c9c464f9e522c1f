"""State sync: the four snapshot requests of ABCI, over the snapshots on disk (CHAIN.md, State)."""

from __future__ import annotations

import logging

from chain.abci import abci_pb2 as pb
from chain.core.errors import InvalidSnapshot
from chain.core.smt import Tree
from chain.core.snapshots import FORMAT, compute_snapshot_hash, decode_manifest
from chain.snapshots import Restoration, SnapshotDirectory
from chain.store import Store

log = logging.getLogger(__name__)

MAX_OFFERED = 10
"""CometBFT asks every peer for its newest ten."""


class StateSync:
    """Answers peers that restore, and restores this node."""

    def __init__(self, store: Store, snapshots: SnapshotDirectory | None) -> None:
        """Offer ``snapshots`` (None: nothing), restore into ``store``."""
        self._store = store
        self._snapshots = snapshots
        self._restoration: Restoration | None = None
        self._app_hash = b""

    def list_snapshots(self) -> pb.ResponseListSnapshots:
        """Return the newest whole snapshots."""
        stored = self._snapshots.load()[:MAX_OFFERED] if self._snapshots is not None else []
        return pb.ResponseListSnapshots(
            snapshots=[
                pb.Snapshot(
                    height=each.manifest.height,
                    format=FORMAT,
                    chunks=len(each.manifest.chunk_hashes),
                    hash=compute_snapshot_hash(each.metadata),
                    metadata=each.metadata,
                )
                for each in stored
            ]
        )

    def load_chunk(self, request: pb.RequestLoadSnapshotChunk) -> pb.ResponseLoadSnapshotChunk:
        """Return a chunk's bytes, none where it isn't here."""
        if self._snapshots is None or request.format != FORMAT:
            return pb.ResponseLoadSnapshotChunk()
        chunk = self._snapshots.load_chunk(request.height, request.chunk)
        return pb.ResponseLoadSnapshotChunk(chunk=chunk or b"")

    def offer(self, request: pb.RequestOfferSnapshot) -> pb.ResponseOfferSnapshot:
        """Begin to restore; what was half applied is dropped."""
        result = pb.ResponseOfferSnapshot
        if self._restoration is not None:
            log.warning("the snapshot of height %d is given up for another", self._restoration.manifest.height)
            self._store.wipe()
        self._restoration = None
        offered = request.snapshot
        if offered.format != FORMAT:
            return result(result=result.REJECT_FORMAT)
        try:
            manifest = decode_manifest(offered.metadata)
        except InvalidSnapshot as error:
            log.warning("refused an offer: %s", error)
            return result(result=result.REJECT_SENDER)
        promised = (offered.height, offered.chunks, offered.hash)
        if promised != (manifest.height, len(manifest.chunk_hashes), compute_snapshot_hash(offered.metadata)):
            log.warning("refused an offer of height %d: it says other than its metadata", offered.height)
            return result(result=result.REJECT_SENDER)
        if manifest.app_hash != request.app_hash:
            log.warning(
                "refused a snapshot of height %d with app hash %s, the chain has %s",
                manifest.height,
                manifest.app_hash.hex(),
                request.app_hash.hex(),
            )
            return result(result=result.REJECT_SENDER)
        self._restoration = Restoration(self._store, manifest)
        self._app_hash = request.app_hash
        log.info("restoring height %d, %d chunks", manifest.height, len(manifest.chunk_hashes))
        return result(result=result.ACCEPT)

    def apply(self, request: pb.RequestApplySnapshotChunk) -> tuple[pb.ResponseApplySnapshotChunk, Tree | None]:
        """Take in a chunk; returns the tree with the last one."""
        result = pb.ResponseApplySnapshotChunk
        restoration = self._restoration
        if restoration is None:
            return result(result=result.REJECT_SNAPSHOT), None
        if request.index < restoration.next_index:
            return result(result=result.ACCEPT), None  # sent again: it is in already
        if request.index != restoration.next_index:
            return result(result=result.RETRY_SNAPSHOT), None
        if not restoration.is_chunk(request.index, request.chunk):
            log.warning("chunk %d from %s is corrupt, asking others", request.index, request.sender or "nobody")
            senders = [request.sender] if request.sender else []
            answer = result(result=result.RETRY, refetch_chunks=[request.index], reject_senders=senders)
            return answer, None
        try:
            restoration.apply(request.chunk)
            if not restoration.is_complete:
                return result(result=result.ACCEPT), None
            tree = restoration.finish(self._app_hash)
        except InvalidSnapshot as error:
            log.warning("refused the snapshot of height %d: %s", restoration.manifest.height, error)
            self._restoration = None
            self._store.wipe()
            return result(result=result.REJECT_SNAPSHOT), None
        log.info("restored height %d", restoration.manifest.height)
        self._restoration = None
        return result(result=result.ACCEPT), tree
