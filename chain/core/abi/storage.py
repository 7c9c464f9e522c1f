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
    "uint64 signers",  # bitmap of the epoch's seats that signed and have not lost their shard
    "uint64 signedHeight",  # until when they signed to keep it
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

NODE_ACCOUNT = struct(
    "NodeAccount",
    "A node's money and record. freeHeight: when its bond may be withdrawn, the largest uint64 while that is open.",
    "uint256 bond",
    "uint256 earned",
    "uint32 numFaults",
    "uint32 numChallenges",
    "uint64 lastEpoch",
    "uint64 freeHeight",
)

CHALLENGE = struct(
    "Challenge",
    "An open challenge, all zero but blob and seat where there is none. leaf: the leaf to show, modulo their number.",
    "bytes32 blob",
    "uint32 seat",
    "address operator",
    "address challenger",
    "uint64 leaf",
    "uint256 bond",
    "uint64 dueHeight",
)

INCOME = struct(
    "Income",
    "What an epoch's seats share: rate in wei a block, what has accrued, the seats that get nothing (bitmap).",
    "uint256 rate",
    "uint256 accrued",
    "uint64 forfeited",
)

OWNER_ACCOUNT = struct(
    "OwnerAccount",
    "An owner's figures; numBlobs counts the blobs it certified itself.",
    "uint64 numBlobs",
    "uint256 paid",
    "uint256 refunded",
)

NODE_TERMS = struct(
    "NodeTerms",
    "What genesis fixes about bonds (wei), challenges, slashing and the distance of payouts (blocks).",
    "uint256 nodeBond",
    "uint256 challengeBond",
    "uint64 challengeBlocks",
    "uint32 slashPercent",
    "uint64 payoutBlocks",
)

STORAGE = Contract(
    name="Storage",
    address=STORAGE_ADDRESS,
    doc="Storage nodes, committees, certificates, leases and prices.",
    functions=(
        payable(
            "registerNode",
            fields("string url", "bytes32 key", "bytes keyProof", "uint64 capacityBytes"),
            "Register the sender as operator of a node; a seat from the next committee epoch on. keyProof: the "
            "key's ed25519 signature over the domain tag, genesis hash and operator address. The value is its bond.",
        ),
        call("updateNode", fields("string url", "uint64 capacityBytes"), "Change the sender's node."),
        call("retireNode", (), "Take no new seat from the next epoch on."),
        payable("addNodeBond", (), "Add the value to the sender's node's bond."),
        call("withdrawNodeBond", (), "Take a retired node's bond back when nothing that it signed still runs."),
        payable(
            "certify",
            fields("bytes certificate"),
            "Record a blob and take a lease to the certificate's expiry; what was sent too much comes back.",
            fields("bytes32 blob"),
        ),
        payable("renew", fields("bytes32 blob", "uint64 expiryHeight"), "Lengthen the sender's lease."),
        call(
            "release",
            fields("bytes32 blob"),
            "End the sender's lease now; unused blocks beyond the tier's shortest lease come back.",
        ),
        payable(
            "challenge",
            fields("bytes32 blob", "uint32 seat", "uint64 leaf"),
            "Ask a seat to show a leaf of the shard it signed for. The bond (nodeTerms) pays an answer; without one by "
            "the due height it comes back with half of what the node is slashed.",
        ),
        call(
            "answerChallenge",
            fields("bytes32 blob", "uint32 seat", "bytes header", "bytes leaf", "bytes proof"),
            "Show the leaf with the blob's header and the Merkle path; anybody may answer for a node.",
        ),
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
        view(
            "signedHeights",
            fields("bytes32[] blobs"),
            fields("uint64[] heights"),
            "Until when the newest certified receipts bind, 0 where unknown; at most 256 a call.",
        ),
        view("nodeAccount", fields("address operator"), fields((NODE_ACCOUNT, "info")), "A node's bond and book."),
        view("challengeAt", fields("bytes32 blob", "uint32 seat"), fields((CHALLENGE, "info")), "An open challenge."),
        view(
            "challengesOf",
            fields("address operator"),
            fields((CHALLENGE, "list[]")),
            "A node's open challenges, the most urgent first, at most 64.",
        ),
        view("income", fields("uint64 epoch"), fields((INCOME, "info")), "What an epoch's seats have to share."),
        view("ownerAccount", fields("address owner"), fields((OWNER_ACCOUNT, "info")), "What an owner paid."),
        view(
            "blobsOf",
            fields("address owner", "uint64 start", "uint64 count"),
            fields("bytes32[] blobs"),
            "Blobs that an owner certified, oldest first; at most 256 a call.",
        ),
        view("nodeTerms", (), fields((NODE_TERMS, "info")), "What genesis fixes for nodes."),
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
        event("LeaseReleased", "", "indexed bytes32 blob", "indexed address owner", "uint256 refund"),
        event("NodeBonded", "", "indexed address operator", "uint256 amount", "uint256 bond"),
        event("NodeBondWithdrawn", "", "indexed address operator", "uint256 amount"),
        event(
            "IncomePaid", "amount: to each of numSeats.", "indexed uint64 epoch", "uint256 amount", "uint32 numSeats"
        ),
        event(
            "ChallengeOpened",
            "",
            "indexed bytes32 blob",
            "indexed address operator",
            "indexed address challenger",
            "uint32 seat",
            "uint64 leaf",
            "uint64 dueHeight",
        ),
        event("ChallengeAnswered", "", "indexed bytes32 blob", "indexed address operator", "uint32 seat"),
        event("ChallengeLapsed", "", "indexed bytes32 blob", "indexed address operator", "uint32 seat"),
        event("NodeSlashed", "", "indexed address operator", "indexed bytes32 blob", "uint32 seat", "uint256 amount"),
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
        error("BlobIsPinned", "A run needs it; its lease ends by itself.", "bytes32 blob"),
        error("BondTooSmall", "", "uint256 expected", "uint256 got"),
        error("BondLocked", "", "uint64 freeHeight", "uint64 height"),
        error(
            "NotSigned", "The seat did not sign for its shard, or has lost it already.", "bytes32 blob", "uint32 seat"
        ),
        error("ChallengeIsOpen", "", "bytes32 blob", "uint32 seat"),
        error("NoChallenge", "", "bytes32 blob", "uint32 seat"),
        error("BadAnswer", "The answer does not show the leaf; reason says why.", "string reason"),
        error("TooMany", "", "uint256 maximum", "uint256 got"),
        *CALL_ERRORS,
    ),
)
