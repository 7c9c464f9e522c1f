"""archipelago_archivedRound: the record of a round that has left the state, with its path to the run's archive.

A node that executed the round's blocks has its records aside (``chain.store``).  Whoever receives the answer checks it:
``chain.verified_reads`` against a light client's accumulator, ``Training.archivedRound`` on the chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chain.core.accumulator import EMPTY_ACCUMULATOR, append, prove
from chain.rpc.archive_leaves import collect_record, open_archive
from chain.rpc.faults import InvalidParams
from chain.rpc.session import Method, Session
from chain.rpc.values import Params, hex_data, quantity


def get_archived_round(session: Session, params: Params) -> dict[str, Any]:
    """archipelago_archivedRound(run, round, length): for the archive as it is, or as it was at ``length`` rounds."""
    params.at_most(3)
    run, t = (params.number(index, name, 2**63 - 1) for index, name in ((0, "run"), (1, "round")))
    book = open_archive(session.snapshot, run)
    accumulator = book.get_accumulator()
    newest = accumulator.length
    length = newest if params.raw(2, "length", None) is None else params.number(2, "length", 2**63 - 1)
    if not 0 <= t < length <= newest:
        raise InvalidParams(f"round {t} under the first {length} archived rounds: run {run} has archived {newest}")
    leaves = session.archives.get(session.snapshot, run, length)
    if length != newest:
        accumulator = EMPTY_ACCUMULATOR
        for leaf in leaves:
            accumulator = append(accumulator, leaf)
    return {
        "run": quantity(run),
        "round": quantity(t),
        "record": hex_data(collect_record(book, t)),
        "siblings": [hex_data(sibling) for sibling in prove(leaves, t)],
        "length": quantity(length),
        "peaks": [hex_data(peak) for peak in accumulator.peaks],
    }


ARCHIVE_METHODS: Mapping[str, Method] = {"archipelago_archivedRound": get_archived_round}
"""By JSON-RPC name."""
