"""A process that recovers senders and checks certificates while the application does something else.

It gets transactions over its standard input, a socket, and answers there (``chain.abci.verifier_wire``).  What it does
is a pure function of what it gets; it opens nothing, and ends with the socket, so with its application however that
ends.  ``chain.abci.verifying`` starts it.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import Sequence

from chain.abci.signatures_ahead import find_certificate
from chain.abci.verifier_wire import Signed, Terms, decode_question, encode_answer, encode_record
from chain.abci.wire import FrameReader
from chain.core.errors import InvalidTransaction
from chain.core.transactions import decode_transaction
from da.core.certificate import decode_certificate, iterate_signed
from da.core.errors import InvalidCertificate, MalformedCertificate
from da.core.receipt import is_signature_valid

_READ_BYTES = 1 << 18


def compute_answer(terms: Terms | None, number: int, transactions: Sequence[bytes]) -> bytes:
    """Return the frame of a batch's verdicts; without terms there are none."""
    records: list[bytes] = []
    signed: list[Signed] = []
    for raw in transactions:
        record = b""
        if terms is not None:
            try:
                transaction = decode_transaction(raw, terms.chain_id)
                record = encode_record(transaction)
                if transaction.data:
                    signed += _check_certificate(transaction.data, terms)
            except InvalidTransaction:  # the application finds out why
                pass
        records.append(record)
    return encode_answer(number, records, signed)


def _check_certificate(calldata: bytes, terms: Terms) -> list[Signed]:
    """Return what a call's certificate has signed, all of it valid, or nothing."""
    encoded = find_certificate(calldata, terms.genesis_hash)
    if encoded is None:
        return []
    try:
        certificate = decode_certificate(encoded)
        committee = terms.committees.get(certificate.terms.epoch)
        if committee is None or any(seat >= len(committee.seats) for seat, _ in certificate.signatures):
            return []
        signed = [(key, signature, message) for _, key, signature, message in iterate_signed(certificate, committee)]
    except (MalformedCertificate, InvalidCertificate):
        return []
    return signed if all(is_signature_valid(*each) for each in signed) else []


def serve(connection: socket.socket) -> None:
    """Answer until the other side closes."""
    terms: Terms | None = None
    frames = FrameReader()
    connection.sendall(encode_answer(0, (), ()))
    while data := connection.recv(_READ_BYTES):
        for message in frames.feed(data):
            question = decode_question(message)
            if isinstance(question, Terms):
                terms = question
            else:
                connection.sendall(compute_answer(terms, *question))


def main() -> None:
    """Serve the socket that is standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the application's, which then closes the socket
    gc.collect()
    gc.freeze()
    try:
        with socket.socket(fileno=sys.stdin.fileno()) as connection:
            connection.setblocking(True)
            serve(connection)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the application is gone


if __name__ == "__main__":
    main()
