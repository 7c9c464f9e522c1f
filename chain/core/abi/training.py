"""``Training`` at 0x..1000: runs, members, rounds, updates, votes, checkpoints (DESIGN 4.1).

Vocabulary.  Round t exchanges fragment ``t mod numFragments``.  *Version* v of the agreed state is the
state after v rounds: version 0 is genesis, round t leads from version t to version t + 1.  A void round
repeats the root, so every round advances the version by one.  Amounts are wei, losses are micronats a
token (1e-6), deadlines are block heights.
"""

from __future__ import annotations

from chain.core.abi.declare import Contract, call, error, event, fields, payable, struct, view
from chain.core.abi.shared import CALL_ERRORS, CERTIFICATE_ERRORS

TRAINING_ADDRESS = bytes.fromhex("0000000000000000000000000000000000001000")

RUN_PARAMS = struct(
    "RunParams",
    "What the owner chooses when a run is created; a change latches at the next opening of a round.",
    "uint32 numFragments",
    "uint32 overlap",  # d: 0 synchronous, 1 one round late
    "uint32 localSteps",  # H: inner steps between two exchanges of the same tensor
    "uint64 numRounds",  # rounds before the numFragments flush rounds
    "uint32 minMembers",
    "uint32 maxMembers",
    "uint32 roundBlocks",  # T_round
    "uint32 graceBlocks",
    "uint32 revealBlocks",  # T_reveal
    "uint32 attestBlocks",
    "uint32 disputeBlocks",  # T_dispute
    "uint32 recoverBlocks",  # T_recover
    "uint32 lockBlocks",  # bond lock after leaving
    "uint32 checkpointInterval",  # rounds
    "uint32 numCheckpointParts",
    "uint32 leaseBlocks",  # lease that the escrow buys for each payload
    "bool isAllowListed",
    "bool isSealed",
    "uint128 rewardPerUpdate",
    "uint128 memberBond",
)

RUN_INFO = struct(
    "RunInfo",
    "A run as it stands. state: 0 none, 1 CREATED (genesis not certified), 2 RUNNING, 3 WAITING, 4 PAUSED, 5 FINISHED.",
    "uint64 run",
    "address owner",
    "uint8 state",
    "bytes32 recipeDigest",
    "bytes32 genesisRoot",
    "uint64 headVersion",
    "bytes32 headRoot",
    "uint64 numOpened",
    "uint64 numSettled",
    "uint64 numRoundsTotal",
    "uint32 numMembers",
    "uint32 numEligible",
    "uint32 voidsInRow",
    "uint64 certifiedVersion",
    "bytes32 certifiedRoot",
    "uint256 escrow",
    "uint256 paidRewards",
    "uint256 paidStorage",
    "uint64 createdHeight",
    "uint32 rank",
    "uint32 localSteps",
    (RUN_PARAMS, "params"),
)

ROUND_INFO = struct(
    "RoundInfo",
    "A round. state: 0 none, 1 OPEN, 2 REVEAL, 3 ATTEST, 4 DISPUTE, 5 FINAL, 6 VOID. Heights are 0 until reached.",
    "uint64 round",
    "uint8 state",
    "uint32 fragment",
    "uint32 localSteps",
    "uint32 rank",
    "uint64 baseVersion",
    "bytes32 baseRoot",
    "bytes32 root",
    "uint64 openedHeight",
    "uint64 closedHeight",
    "uint64 attestHeight",
    "uint64 settledHeight",
    "uint64 dueHeight",
    "uint32 numEligible",
    "uint32 numCommitted",
    "uint32 numAccepted",
    "uint32 numVotes",
    "uint32 retries",
    "uint64 storageEpoch",
    "bytes32 dataSeed",
)

UPDATE = struct(
    "Update",
    "One worker's update of one round. fate: 0 none, 1 PENDING, 2 ACCEPTED, 3 REFUSED. reason: 0 none, "
    "1 VOID_ROUND, 2 MISSING_PAYLOAD, 3 INVALID_PAYLOAD, 4 NOT_REVEALED, 5 NOT_DRAWN.",
    "address member",
    "bytes32 digest",
    "bytes32 blob",
    "uint64 sizeBytes",
    "uint64 tokens",
    "uint64 lossMicro",
    "uint8 fate",
    "uint8 reason",
    "uint64 height",
    "uint256 paid",
)

VOTE = struct(
    "Vote",
    "A member's attestation: the root after the round, and which updates it refused (bit i = update i in "
    "the order of updates()). missing: bit i set where the payload could not be had; then root is zero.",
    "address member",
    "bytes32 root",
    "uint256 refused",
    "uint256 missing",
    "uint64 height",
)

MEMBER = struct(
    "Member",
    "A worker in a run. state: 0 none, 1 JOINED, 2 READY, 3 ACTIVE, 4 DROPPED, 5 LEFT.",
    "address worker",
    "address payout",
    "uint8 state",
    "uint256 bond",
    "uint64 joinedHeight",
    "uint64 rejoinHeight",
    "uint64 bondUnlockHeight",
    "uint32 missed",
    "uint32 drops",
    "uint64 accepted",
    "uint64 refused",
    "uint64 tokens",
    "uint256 earned",
    "uint64 lastRound",
    "string client",
)

CHECKPOINT = struct(
    "Checkpoint",
    "A checkpoint of version v. state: 0 none, 1 OPEN, 2 CERTIFIED, 3 SUPERSEDED.",
    "uint64 version",
    "bytes32 root",
    "uint8 state",
    "uint64 height",
    "bytes32[] blobs",
)

EVALUATION = struct(
    "Evaluation", "A held-out loss.", "uint64 version", "uint64 lossMicro", "address by", "uint64 height"
)

_RUN = "uint64 run"
_ROUND = "uint64 round"

TRAINING = Contract(
    name="Training",
    address=TRAINING_ADDRESS,
    doc="Runs, members, rounds, updates and checkpoints.",
    functions=(
        payable(
            "createRun",
            fields((RUN_PARAMS, "params"), "bytes recipe", "bytes32 genesisRoot"),
            "Create a run; the value sent is its escrow. RUNNING once genesis (version 0) is certified.",
            fields(_RUN),
        ),
        payable("fund", fields(_RUN), "Add the value sent to a run's escrow; anybody may."),
        call(
            "reclaim",
            fields(_RUN),
            "Owner: take the escrow of a run back that has been idle for 20 round times and recoverBlocks.",
        ),
        call("allow", fields(_RUN, "address[] workers", "bool isAllowed"), "Owner: change the allow-list."),
        call("setParams", fields(_RUN, (RUN_PARAMS, "params")), "Owner: change parameters from the next opening on."),
        call("pause", fields(_RUN), "Owner: open no further round; open ones end by their timers."),
        call("resume", fields(_RUN), "Owner: open rounds again."),
        payable(
            "join",
            fields(_RUN, "bytes32 recipeDigest", "address payout", "string client"),
            "Join with the sender as worker key; the value sent is the bond, at least memberBond.",
        ),
        call("ready", fields(_RUN, "bytes32 root"), "Show one of the last 2F roots: eligible at the next opening."),
        call("leave", fields(_RUN), "Leave; the bond is free lockBlocks after the member's rounds have settled."),
        call("withdrawBond", fields(_RUN), "Take the bond back once it is unlocked."),
        call(
            "commit",
            fields(
                _RUN,
                _ROUND,
                "bytes32 baseRoot",
                "bytes32 digest",
                "bytes certificate",
                "uint64 tokens",
                "uint64 lossMicro",
            ),
            "Record the sender's update of an OPEN round; digest is blake3 of the payload, the certificate is "
            "the store's (its lease is paid by the run).",
        ),
        call("reveal", fields(_RUN, _ROUND, "bytes32 key"), "Sealed runs: show the key of the sender's payload."),
        call(
            "attest",
            fields(
                _RUN, _ROUND, "uint32 attempt", "bytes32 root", "uint256 refused", "uint32 rank", "uint32 localSteps"
            ),
            "In the round's attempt (retries), vote for the root after the round, the refused updates, and propose rank and H (0: no proposal).",
        ),
        call(
            "reportMissing",
            fields(_RUN, _ROUND, "uint32 attempt", "uint256 missing"),
            "Say which payloads cannot be had; no root vote.",
        ),
        call(
            "checkpoint",
            fields(_RUN, "uint64 version", "uint32 part", "bytes certificate"),
            "Name the stored blob of one part of the state at a checkpoint version. Genesis: the owner.",
        ),
        call("recordEvaluation", fields(_RUN, "uint64 version", "uint64 lossMicro"), "Record a held-out loss."),
        view("numRuns", (), fields("uint64 count"), "Number of runs; ids are 1..count."),
        view("run", fields(_RUN), fields((RUN_INFO, "info")), "A run."),
        view("recipe", fields(_RUN), fields("bytes recipe"), "A run's recipe, TOML."),
        view("round", fields(_RUN, _ROUND), fields((ROUND_INFO, "info")), "A round."),
        view("participants", fields(_RUN, _ROUND), fields("address[] members"), "V: eligible when the round opened."),
        view("update", fields(_RUN, _ROUND, "address member"), fields((UPDATE, "info")), "A member's update."),
        view("updates", fields(_RUN, _ROUND), fields((UPDATE, "list[]")), "All updates of a round in commit order."),
        view("votes", fields(_RUN, _ROUND), fields((VOTE, "list[]")), "All votes of a round's current attempt."),
        view("root", fields(_RUN, "uint64 version"), fields("bytes32 value"), "The agreed root of a version."),
        view(
            "archive",
            fields(_RUN),
            fields("uint64 numArchived", "bytes32 value", "bytes32[] peaks"),
            "Rounds 0 .. numArchived-1 have left the state; value commits to their records.",
        ),
        view(
            "archivedRound",
            fields(_RUN, _ROUND, "bytes record", "bytes32[] siblings"),
            fields((ROUND_INFO, "info"), (UPDATE, "list[]")),
            "A round that has left the state, out of its record (archipelago_archivedRound of a node), once that is "
            "proved under the run's archive.",
        ),
        view("member", fields(_RUN, "address worker"), fields((MEMBER, "info")), "A member."),
        view("members", fields(_RUN), fields((MEMBER, "list[]")), "All members in order of joining."),
        view("isAllowed", fields(_RUN, "address worker"), fields("bool value"), "Whether a worker may join."),
        view(
            "checkpointAt",
            fields(_RUN, "uint64 version"),
            fields((CHECKPOINT, "info")),
            "A checkpoint; blobs[i] is zero where part i is missing.",
        ),
        view(
            "checkpointPartOf",
            fields(_RUN, "uint64 version"),
            fields("address[] uploaders"),
            "Which member is asked to upload each part (after the grace blocks any member may).",
        ),
        view(
            "evaluations",
            fields(_RUN, "uint64 from", "uint64 count"),
            fields((EVALUATION, "list[]")),
            "Held-out losses by version, oldest first; at most 256 a call.",
        ),
    ),
    events=(
        event("RunCreated", "", "indexed uint64 run", "indexed address owner", "bytes32 genesisRoot"),
        event("RunStateChanged", "", "indexed uint64 run", "uint8 previous", "uint8 current"),
        event("RunFunded", "", "indexed uint64 run", "address by", "uint256 amount"),
        event(
            "RunReverted",
            "Rounds were undone to a certified version.",
            "indexed uint64 run",
            "uint64 fromVersion",
            "uint64 toVersion",
        ),
        event("ParamsChanged", "", "indexed uint64 run", "uint64 fromRound"),
        event("MemberJoined", "", "indexed uint64 run", "indexed address worker", "uint256 bond"),
        event("MemberReady", "", "indexed uint64 run", "indexed address worker", "bytes32 root"),
        event(
            "MemberDropped", "", "indexed uint64 run", "indexed address worker", "uint32 missed", "uint64 rejoinHeight"
        ),
        event("MemberLeft", "", "indexed uint64 run", "indexed address worker", "uint64 bondUnlockHeight"),
        event(
            "RoundOpened", "", "indexed uint64 run", "indexed uint64 round", "bytes32 baseRoot", "uint32 numEligible"
        ),
        event(
            "UpdateCommitted",
            "",
            "indexed uint64 run",
            "indexed uint64 round",
            "indexed address member",
            "bytes32 digest",
            "bytes32 blob",
        ),
        event("RoundClosed", "", "indexed uint64 run", "indexed uint64 round", "uint32 numCommitted"),
        event("RoundAttesting", "", "indexed uint64 run", "indexed uint64 round", "uint32 retries"),
        event("VoteCast", "", "indexed uint64 run", "indexed uint64 round", "indexed address member", "bytes32 root"),
        event(
            "PayloadReportedMissing",
            "",
            "indexed uint64 run",
            "indexed uint64 round",
            "indexed address member",
            "uint256 missing",
        ),
        event("RoundDisputed", "", "indexed uint64 run", "indexed uint64 round", "uint32 numRoots"),
        event("RoundFinalised", "", "indexed uint64 run", "indexed uint64 round", "bytes32 root", "uint32 numAccepted"),
        event("RoundVoided", "", "indexed uint64 run", "indexed uint64 round", "uint8 reason"),
        event(
            "UpdateRefused", "", "indexed uint64 run", "indexed uint64 round", "indexed address member", "uint8 reason"
        ),
        event(
            "RewardPaid", "", "indexed uint64 run", "indexed uint64 round", "indexed address member", "uint256 amount"
        ),
        event(
            "CheckpointPartStored", "", "indexed uint64 run", "indexed uint64 version", "uint32 part", "bytes32 blob"
        ),
        event("CheckpointCertified", "", "indexed uint64 run", "indexed uint64 version", "bytes32 root"),
        event(
            "EscrowReturned",
            "The rest, after the final checkpoint.",
            "indexed uint64 run",
            "address to",
            "uint256 amount",
        ),
        event("EvaluationRecorded", "", "indexed uint64 run", "indexed uint64 version", "uint64 lossMicro"),
    ),
    errors=(
        error("UnknownRun", "", "uint64 run"),
        error("UnknownRound", "", "uint64 run", "uint64 round"),
        error("UnknownVersion", "", "uint64 run", "uint64 version"),
        error("NotOwner", "", "address expected", "address got"),
        error("NotMember", "", "uint64 run", "address got"),
        error(
            "NotEligible",
            "The sender was not in V when the round opened, or is no longer live.",
            "uint64 round",
            "address got",
        ),
        error("NotAllowed", "", "uint64 run", "address got"),
        error("AlreadyMember", "", "uint64 run", "address got"),
        error("RunFull", "", "uint32 maxMembers"),
        error("WrongRunState", "", "uint8 expected", "uint8 got"),
        error("WrongRoundState", "", "uint8 expected", "uint8 got"),
        error("RecipeMismatch", "", "bytes32 expected", "bytes32 got"),
        error("RecipeTooLarge", "", "uint256 maximum", "uint256 got"),
        error("BadParams", "", "string field", "uint256 minimum", "uint256 maximum", "uint256 got"),
        error("BondTooSmall", "", "uint256 expected", "uint256 got"),
        error("BondLocked", "", "uint64 untilHeight", "uint64 height"),
        error("NothingToWithdraw", "", "address got"),
        error("RejoinTooEarly", "", "uint64 fromHeight", "uint64 height"),
        error("StaleBase", "", "bytes32 expected", "bytes32 got"),
        error("UnknownRoot", "Not one of the last 2F roots.", "bytes32 head", "bytes32 got"),
        error("AlreadyCommitted", "", "uint64 round", "bytes32 digest"),
        error(
            "StaleAttempt", "The round has been tried again; look at it and vote anew.", "uint32 expected", "uint32 got"
        ),
        error(
            "RoundArchived",
            "The round has left the state; a node that keeps history still answers.",
            "uint64 run",
            "uint64 round",
            "uint64 firstKept",
        ),
        error(
            "BadArchiveProof",
            "The record is not that of the round under the run's archive as it is now: ask a node for a new proof.",
            "uint64 run",
            "uint64 round",
            "uint64 numArchived",
        ),
        error("ReclaimTooEarly", "", "uint64 expected", "uint64 got"),
        error("AlreadyVoted", "", "uint64 round", "bytes32 root"),
        error("AlreadyRevealed", "", "uint64 round"),
        error("WrongKey", "", "bytes32 expected", "bytes32 got"),
        error("BadMask", "A bit outside the round's updates.", "uint256 numUpdates", "uint256 got"),
        error("EscrowTooSmall", "", "uint256 expected", "uint256 got"),
        error("NotCheckpointVersion", "", "uint64 interval", "uint64 got"),
        error("UnknownPart", "", "uint32 numParts", "uint32 got"),
        error("PartAlreadyStored", "", "uint32 part", "bytes32 blob"),
        error("NotYourPart", "", "address expected", "address got"),
        error("AlreadyEvaluated", "", "uint64 version", "uint64 lossMicro"),
        error("PreviousUnsettled", "A vote waits until the round before has settled.", "uint64 round"),
        error("CheckpointSuperseded", "A later checkpoint is certified.", "uint64 version", "uint64 certifiedVersion"),
        error("SealedNotSupported", "Sealed runs are not offered yet."),
        error("PaidRunNeedsAllowList", "A run with a reward must be allow-listed until audits exist."),
        error("EmptyPayload", "A payload or a checkpoint part has at least one byte.", "bytes32 blob"),
        *CERTIFICATE_ERRORS,
        *CALL_ERRORS,
    ),
)
