"""The newest agreed state that chain and stores can prove (DESIGN 4.1, *Newcomers*; cases 2, 9, 13, 77, 78).

Parts are read by blob id (each byte is checked against it), joined, and the root is compared with the one
the chain agreed on.  A checkpoint that does not fit names what is wrong and the one before it is tried; at
the end stands genesis, which everybody can compute.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from contracts.bindings.checkpoints import is_complete
from contracts.bindings.types import Checkpoint, RunInfo
from training.worker.asking import Interrupted
from training.worker.errors import ANOTHER_CHECKPOINT, SEE_STORES, GenesisMismatch, PayloadError, StateUnavailable
from training.worker.ports import ChainPort, PayloadPort, Rules
from training.worker.trace import EventKind, Trace

LOG = logging.getLogger("trainer")

MAX_PART_BYTES = 1 << 34
"""Upper bound of one checkpoint part, 16 GiB."""


def restore_newest(
    *,
    chain: ChainPort,
    payloads: PayloadPort,
    rules: Rules,
    trace: Trace,
    run: RunInfo,
    stop: threading.Event | None = None,
) -> tuple[Any, int]:
    """Return (state, version) of the newest certified checkpoint that proves itself.

    Raises ``StateUnavailable`` naming each that failed, ``GenesisMismatch`` when even version 0 is another one, and
    ``Interrupted`` between two parts once ``stop`` is set.
    """
    reasons = []
    interval = run.params.checkpoint_interval
    versions = [run.certified_version]
    versions += [v for v in range(0, run.certified_version, interval) if v][::-1]
    for version in [v for v in versions if v > 0]:
        try:
            return restore_version(
                chain=chain, payloads=payloads, rules=rules, trace=trace, run=run.run, version=version, stop=stop
            )
        except StateUnavailable as error:
            LOG.warning("%s", error)
            reasons.append(error.message)
    state = restore_genesis(chain=chain, payloads=payloads, rules=rules, trace=trace, run=run, stop=stop)
    if reasons:
        LOG.warning("starting from genesis: no certified checkpoint could be restored")
    return state, 0


def restore_genesis(
    *,
    chain: ChainPort,
    payloads: PayloadPort,
    rules: Rules,
    trace: Trace,
    run: RunInfo,
    stop: threading.Event | None = None,
) -> Any:
    """Return version 0: computed, or from the stores where the run begins from given weights.

    Raises ``GenesisMismatch`` when it is not the chain's, ``StateUnavailable`` when the stores don't give it.
    """
    state = rules.create_genesis()
    if state is None:
        state, _ = restore_version(
            chain=chain, payloads=payloads, rules=rules, trace=trace, run=run.run, version=0, stop=stop
        )
    if state.root() != run.genesis_root:
        raise GenesisMismatch(run.run, run.genesis_root, state.root())
    return state


def restore_version(
    *,
    chain: ChainPort,
    payloads: PayloadPort,
    rules: Rules,
    trace: Trace,
    run: int,
    version: int,
    stop: threading.Event | None = None,
) -> tuple[Any, int]:
    """Return (state, version) of one certified checkpoint, or raise ``StateUnavailable`` with the reason."""
    checkpoint: Checkpoint = chain.training.checkpoint_at(run, version)
    if not is_complete(checkpoint):
        raise StateUnavailable(
            f"version {version} has no certified checkpoint", next_step="leave --version out to take the newest"
        )
    parts = []
    for index, blob in enumerate(checkpoint.blobs):
        if stop is not None and stop.is_set():
            raise Interrupted(f"stopped before part {index} of checkpoint {version} was fetched")
        with trace.span(EventKind.RESTORE, version) as span:
            try:
                part = payloads.get(blob, max_bytes=MAX_PART_BYTES)
            except PayloadError as error:
                raise StateUnavailable(f"checkpoint {version}, part {index}: {error}", next_step=SEE_STORES) from error
            span.num_bytes = len(part)
        parts.append(part)
    try:
        state = rules.decode_parts(parts)
    except StateUnavailable as error:
        raise StateUnavailable(f"checkpoint {version}: {error.message}", next_step=error.next_step) from error
    root = state.root()
    if root != checkpoint.root:
        raise StateUnavailable(
            f"checkpoint {version}: its parts have root {root.hex()}, the chain's is {checkpoint.root.hex()}",
            next_step=ANOTHER_CHECKPOINT,
        )
    return state, version
