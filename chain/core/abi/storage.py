"""``Storage`` at 0x..1001: nodes, committees, certificates, leases, prices (DESIGN 5 and 6).

A lease is paid for size x blocks at its tier's price; heights are block heights, amounts wei.
"""

from __future__ import annotations

from chain.core.abi.declare import Contract, call, error, event, fields, payable, struct, view
from chain.core.abi.shared import CALL_ERRORS, CERTIFICATE_ERRORS

STORAGE_ADDRESS = bytes.fromhex("0000000000000000000000000000000000001001")

NODE = struct(
    "StorageNode",
    "A storage node. state: 0 none, 1 REGISTERED, 2 RETIRING (serves until its leases end).",
    "address operator",
    "bytes32 key",  # ed25519 public key of its receipts
    "string url",
    "uint64 capacityBytes",
    "uint8 state",
    "uint64 registeredHeight",
)

BLOB = struct(
    "Blob",
    "A certified blob. releaseHeight: first height at which stores may delete it; the largest uint64 while "
    "it is pinned (a payload not yet under a checkpoint, the newest checkpoint). state: 0 unknown, 1 LIVE, 2 RELEASED.",
    "bytes32 blob",
    "address owner",
    "uint64 sizeBytes",
    "uint8 tier",
    "uint64 epoch",
    "uint64 certifiedHeight",
    "uint64 expiryHeight",
    "uint64 releaseHeight",
    "uint8 state",
    "uint256 paid",
)

TIER = struct(
    "Tier",
    "A tier's price: fee = ceil(max(size, minBytes) * blocks * picoweiPerByteBlock / 10^12), at least 1 wei.",
    "uint8 id",
    "string name",
    "uint256 picoweiPerByteBlock",
    "uint64 minBytes",
    "uint64 minBlocks",
    "uint64 maxBlocks",
)

STORAGE = Contract(
    name="Storage",
    address=STORAGE_ADDRESS,
    doc="Storage nodes, committees, certificates, leases and prices.",
    functions=(
        call(
            "registerNode",
            fields("string url", "bytes32 key", "bytes keyProof", "uint64 capacityBytes"),
            "Register the sender as operator of a node; a seat from the next committee epoch on. keyProof: the "
            "key's ed25519 signature over the domain tag, genesis hash and operator address.",
        ),
        call("updateNode", fields("string url", "uint64 capacityBytes"), "Change the sender's node."),
        call("retireNode", (), "Take no new seat from the next epoch on."),
        payable(
            "certify",
            fields("bytes certificate"),
            "Record a blob and take a lease to the certificate's expiry; what was sent too much comes back.",
            fields("bytes32 blob"),
        ),
        payable("renew", fields("bytes32 blob", "uint64 expiryHeight"), "Lengthen the sender's lease."),
        view("genesisHash", (), fields("bytes32 value"), "What receipts are bound to."),
        view("epoch", (), fields("uint64 value"), "The current committee epoch; it and the one before are accepted."),
        view("committee", fields("uint64 epoch"), fields((NODE, "seats[]")), "The seats of an epoch, in order."),
        view("node", fields("address operator"), fields((NODE, "info")), "A node."),
        view("nodes", (), fields((NODE, "list[]")), "All nodes in order of registration."),
        view("blob", fields("bytes32 id"), fields((BLOB, "info")), "A blob and the longest of its leases."),
        view(
            "releaseHeights",
            fields("bytes32[] blobs"),
            fields("uint64[] heights"),
            "For the stores' collector: releaseHeight of each blob, 0 where unknown; at most 256 a call.",
        ),
        view("leaseExpiry", fields("bytes32 blob", "address owner"), fields("uint64 height"), "An owner's lease."),
        view(
            "quote", fields("uint8 tier", "uint64 sizeBytes", "uint64 blocks"), fields("uint256 fee"), "The exact fee."
        ),
        view("tiers", (), fields((TIER, "list[]")), "The tiers and their prices."),
    ),
    events=(
        event("NodeRegistered", "", "indexed address operator", "bytes32 key", "string url"),
        event("NodeUpdated", "", "indexed address operator", "string url"),
        event("NodeRetired", "", "indexed address operator"),
        event("EpochStarted", "", "indexed uint64 epoch", "uint32 numSeats"),
        event(
            "BlobCertified",
            "",
            "indexed bytes32 blob",
            "indexed address owner",
            "uint64 sizeBytes",
            "uint8 tier",
            "uint64 expiryHeight",
            "uint256 fee",
        ),
        event(
            "LeaseRenewed", "", "indexed bytes32 blob", "indexed address owner", "uint64 expiryHeight", "uint256 fee"
        ),
        event("BlobReleased", "", "indexed bytes32 blob", "uint64 releaseHeight"),
    ),
    errors=(
        *CERTIFICATE_ERRORS,
        error("FeeTooSmall", "", "uint256 expected", "uint256 got"),
        error("UnknownBlob", "", "bytes32 blob"),
        error("NoLease", "", "bytes32 blob", "address got"),
        error("NodeAlreadyRegistered", "", "address operator"),
        error("KeyAlreadyRegistered", "", "bytes32 key"),
        error("BadKeyProof", "", "bytes32 key"),
        error("UnknownNode", "", "address operator"),
        error("BadUrl", "", "string reason"),
        error("TooMany", "", "uint256 maximum", "uint256 got"),
        *CALL_ERRORS,
    ),
)
