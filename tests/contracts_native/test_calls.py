"""What anybody may send: any bytes, any values, to any function (cases 30 and 46).

The outcome is return data or a declared custom error, never an exception, and a revert changes nothing.
"""

from __future__ import annotations

import ast
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from driver import CALL_GAS, RUN_PARAMS, Chain, Reverted, make_address, make_hash, run_params
from hypothesis import given, settings
from hypothesis import strategies as st

import chain.core.contracts as contracts_package
from chain.core.abi.declare import Contract, Field, Mutability, Struct
from chain.core.abi.staking import STAKING
from chain.core.abi.storage import STORAGE
from chain.core.abi.training import TRAINING
from chain.core.contracts.gas import WRITE_GAS
from chain.core.native import OutOfGas

DECLARATIONS: dict[str, Contract] = {c.name: c for c in (TRAINING, STORAGE, STAKING)}
FUNCTIONS = [(c.name, f.name) for c in DECLARATIONS.values() for f in c.functions]


def make_busy_chain() -> tuple[Chain, int]:
    """A chain with a run in the middle of its life."""
    chain = Chain()
    run = chain.create_run(numFragments=1, overlap=1)
    chain.join(run, "ann", "bob")
    chain.advance()
    chain.commit(run, 0, "ann")
    chain.commit(run, 0, "bob")
    chain.commit(run, 1, "ann")
    chain.advance()
    return chain, run


def odd_value(kind: str | Struct, rng: random.Random, chain: Chain) -> Any:
    if isinstance(kind, Struct):
        values = run_params() if kind.name == "RunParams" and rng.random() < 0.5 else None
        if values is None:
            return tuple(odd_value(field.kind, rng, chain) for field in kind.fields)
        position = rng.randrange(len(values))
        changed = list(values)
        changed[position] = odd_value(kind.fields[position].kind, rng, chain)
        return tuple(changed)
    if kind.startswith("uint"):
        top = 2 ** int(kind[4:]) - 1
        return rng.choice((0, 1, 2, 3, top, top - 1, top // 2 + 1, rng.randrange(top + 1)))
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "address":
        return rng.choice((bytes(20), b"\xff" * 20, make_address("ann"), make_address("eve")))
    if kind == "bytes32":
        known = chain.struct("Training", "run", 1)
        return rng.choice((bytes(32), b"\xff" * 32, known["headRoot"], known["recipeDigest"], make_hash("x")))
    if kind == "bytes":
        good = chain.certificate(make_hash(rng.random()), tier=rng.choice((0, 1)))
        return rng.choice((b"", b"\0", b"\xff" * 200, good, good[:-1], good[:100], bytes(70_000)))
    assert kind == "string"
    return rng.choice(("", "http://h:1", "\u0000", "é" * 300, "x" * 65))


def odd_arguments(fields: tuple[Field, ...], rng: random.Random, chain: Chain) -> list[Any]:
    def value(field: Field) -> Any:
        if field.is_array:
            return [odd_value(field.kind, rng, chain) for _ in range(rng.choice((0, 1, 3, 300)))]
        if field.name in ("run", "round") and rng.random() < 0.7:
            return 1  # mostly the run that exists, so that later checks are reached
        return odd_value(field.kind, rng, chain)

    return [value(field) for field in fields]


def test_every_function_survives_odd_values_and_a_revert_changes_nothing() -> None:
    chain, _ = make_busy_chain()
    rng = random.Random(1)
    outcomes: dict[str, set[str]] = {}
    for contract, function in FUNCTIONS * 14:
        declared = chain.codec(contract).by_name[function].function
        arguments = odd_arguments(declared.inputs, rng, chain)
        sender = rng.choice(("owner", "ann", "bob", "eve", "node0"))
        value = rng.choice((0, 0, 0, 0, 0, 1, 10**18))
        chain.fund(sender)
        before = dict(chain.state.changes())
        try:
            chain.call(contract, function, *arguments, sender=sender, value=value)
            outcomes.setdefault(function, set()).add("ok")
        except Reverted as reverted:
            after = {key: value for key, value in chain.state.changes() if value is not None}
            assert after == {key: value for key, value in before.items() if value is not None}, function
            outcomes.setdefault(function, set()).add(reverted.name)
        except OutOfGas:
            outcomes.setdefault(function, set()).add("out of gas")
        assert chain.total_money() == chain.minted
        if rng.random() < 0.1:
            chain.advance(rng.choice((1, 1, 40)))
    assert len(outcomes) == len(FUNCTIONS)
    assert len(set().union(*outcomes.values())) > 25, "the odd values reach many different checks"


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=200),
    contract=st.sampled_from(sorted(DECLARATIONS)),
    pick=st.integers(0, 99),
    strip=st.integers(0, 40),
)
def test_any_bytes_end_in_a_declared_error_or_an_answer(data: bytes, contract: str, pick: int, strip: int) -> None:
    chain = SHARED
    selectors = sorted(chain.codec(contract).by_selector)
    for raw in (data, selectors[pick % len(selectors)] + data, selectors[pick % len(selectors)] + bytes(strip * 32)):
        mark = chain.state.begin()
        with contextlib.suppress(Reverted):  # the driver has found the error declared
            chain.call_raw(contract, raw, sender="eve")
        chain.state.rollback(mark)


SHARED, _ = make_busy_chain()


def test_views_accept_no_money_and_static_calls_write_nothing(chain: Chain) -> None:
    for contract, function in FUNCTIONS:
        declared = chain.codec(contract).by_name[function].function
        arguments = odd_arguments(declared.inputs, random.Random(0), SHARED)
        if declared.mutability is not Mutability.PAYABLE:
            with pytest.raises(Reverted) as paid:
                chain.call(contract, function, *arguments, sender="ann", value=5)
            assert (paid.value.name, paid.value.values) == ("NotPayable", (5,))
        if declared.mutability is not Mutability.VIEW:
            with pytest.raises(Reverted) as static:
                chain.view(contract, function, *arguments)
            assert static.value.name == "WriteInStaticCall"


def test_unknown_selector_and_bad_arguments_are_named(chain: Chain) -> None:
    with pytest.raises(Reverted) as unknown:
        chain.call_raw("Training", b"\xde\xad\xbe\xef")
    assert (unknown.value.name, unknown.value.values) == ("UnknownFunction", (b"\xde\xad\xbe\xef",))
    with pytest.raises(Reverted) as empty:
        chain.call_raw("Storage", b"")
    assert empty.value.name == "UnknownFunction"
    ready = chain.codec("Training").by_name["ready"]
    data = bytearray(ready.encode_inputs((1, bytes(32))))
    data[5] = 1  # dirt above a uint64
    with pytest.raises(Reverted) as dirty:
        chain.call_raw("Training", bytes(data))
    assert dirty.value.name == "BadCalldata"
    with pytest.raises(Reverted) as cut:
        chain.call_raw("Training", bytes(data[:-1]))
    assert cut.value.name == "BadCalldata"


def test_nobody_acts_for_another() -> None:
    """The access matrix: every state-changing function of a run, by everybody who may not (case 30)."""
    chain, run = make_busy_chain()
    chain.call(
        "Training", "join", run, chain.struct("Training", "run", run)["recipeDigest"], bytes(20), "", sender="new"
    )
    base = chain.struct("Training", "round", run, 1)["baseRoot"]
    certificate = chain.certificate(make_hash("p"))
    part = chain.certificate(make_hash("q"), tier=1)
    root = make_hash("r")
    matrix: list[tuple[str, tuple[Any, ...], dict[str, str | None]]] = [
        ("reclaim", (run,), {"owner": "WrongRunState", "ann": "NotOwner", "eve": "NotOwner"}),
        ("allow", (run, [], True), {"owner": None, "ann": "NotOwner", "new": "NotOwner", "eve": "NotOwner"}),
        ("setParams", (run, run_params(numFragments=1)), {"owner": None, "ann": "NotOwner", "eve": "NotOwner"}),
        ("pause", (run,), {"owner": None, "ann": "NotOwner", "eve": "NotOwner"}),
        ("resume", (run,), {"owner": "WrongRunState", "ann": "NotOwner", "eve": "NotOwner"}),
        ("ready", (run, base), {"owner": "NotMember", "ann": None, "new": None, "eve": "NotMember"}),
        ("leave", (run,), {"owner": "NotMember", "ann": None, "new": None, "eve": "NotMember"}),
        ("withdrawBond", (run,), {"owner": "NotMember", "ann": "NothingToWithdraw", "eve": "NotMember"}),
        (
            "commit",
            (run, 1, base, root, certificate, 0, 0),
            {
                "owner": "NotEligible",
                "ann": "AlreadyCommitted",
                "bob": None,
                "new": "NotEligible",
                "eve": "NotEligible",
            },
        ),
        ("reveal", (run, 0, root), {"owner": "WrongRoundState", "ann": "WrongRoundState", "eve": "WrongRoundState"}),
        (
            "attest",
            (run, 0, 0, root, 0, 0, 0),
            {"owner": "NotEligible", "ann": None, "bob": None, "new": "NotEligible", "eve": "NotEligible"},
        ),
        (
            "reportMissing",
            (run, 0, 0, 1),
            {"owner": "NotEligible", "ann": None, "bob": None, "new": "NotEligible", "eve": "NotEligible"},
        ),
        (
            "recordEvaluation",
            (run, 0, 1),
            {"owner": "NotMember", "ann": None, "new": "NotEligible", "eve": "NotMember"},
        ),
        ("checkpoint", (run, 0, 0, part), {"owner": "PartAlreadyStored", "ann": "PartAlreadyStored"}),
    ]
    for function, arguments, expected in matrix:
        for sender, error in expected.items():
            mark = chain.state.begin()
            if error is None:
                chain.call("Training", function, *arguments, sender=sender)
            else:
                with pytest.raises(Reverted) as raised:
                    chain.call("Training", function, *arguments, sender=sender)
                assert raised.value.name == error, (function, sender)
            chain.state.rollback(mark)
    covered = {function for function, _, _ in matrix} | {"createRun", "fund", "join"}  # open to everybody
    writes = {f.name for f in TRAINING.functions if f.mutability is not Mutability.VIEW}
    assert covered == writes


def test_huge_foreign_and_stale_indices_are_refused() -> None:
    """Case 46: no index that a client supplies leads to another's slot."""
    chain, run = make_busy_chain()
    part = chain.certificate(make_hash("q"), tier=1)
    top64, top32 = 2**64 - 1, 2**32 - 1

    def refused(function: str, *arguments: Any, sender: str = "ann") -> str:
        with pytest.raises(Reverted) as raised:
            chain.call("Training", function, *arguments, sender=sender)
        return raised.value.name

    assert refused("commit", run, top64, bytes(32), bytes(32), b"", 0, 0) == "UnknownRound"
    assert refused("commit", top64, 0, bytes(32), bytes(32), b"", 0, 0) == "UnknownRun"
    assert refused("attest", run, 0, 0, make_hash("r"), 2**256 - 1, 0, 0) == "BadMask"
    assert refused("attest", run, 0, 0, make_hash("r"), 0, top32, 0) == "BadParams"
    assert refused("reportMissing", run, 0, 0, 2**255) == "BadMask"
    assert refused("reportMissing", run, 0, 0, 0) == "BadMask"
    assert refused("checkpoint", run, 0, top32, part, sender="owner") == "UnknownPart"
    assert refused("checkpoint", run, top64, 0, part) == "UnknownVersion"
    assert refused("recordEvaluation", run, top64, 1) == "UnknownVersion"
    assert refused("reveal", run, 2, bytes(32)) == "UnknownRound"


def test_genesis_is_the_owners(chain: Chain) -> None:
    run = chain.call("Training", "createRun", run_params(), b"x", make_hash("g"), sender="owner", value=10**18)
    with pytest.raises(Reverted) as raised:
        chain.store_part(run, 0, 0, sender="eve")
    assert (raised.value.name, raised.value.values) == ("NotOwner", (make_address("owner"), make_address("eve")))


def test_create_run_bounds_are_named(chain: Chain) -> None:
    def refused(**changes: Any) -> tuple[str, tuple[Any, ...]]:
        with pytest.raises(Reverted) as raised:
            chain.call("Training", "createRun", run_params(**changes), b"", make_hash("g"), sender="owner")
        return raised.value.name, raised.value.values

    for name in RUN_PARAMS:
        if name in ("isAllowListed", "isSealed", "rewardPerUpdate", "memberBond"):
            continue
        top = 2**64 - 1 if name == "numRounds" else 2**32 - 1
        error, values = refused(**{name: top})
        assert (error, values[0], values[3]) == ("BadParams", name, top)
    assert refused(numFragments=0) == ("BadParams", ("numFragments", 1, 256, 0))
    assert refused(minMembers=17)[1][:3] == ("minMembers", 1, 16)
    assert refused(isSealed=True)[0] == "SealedNotSupported"
    assert refused(rewardPerUpdate=1)[0] == "PaidRunNeedsAllowList"
    with pytest.raises(Reverted) as raised:
        chain.call("Training", "createRun", run_params(), bytes(65_537), make_hash("g"), sender="owner")
    assert (raised.value.name, raised.value.values) == ("RecipeTooLarge", (65_536, 65_537))


def test_join_is_refused_by_name(chain: Chain) -> None:
    run = chain.create_run(isAllowListed=True, maxMembers=1)
    digest = chain.struct("Training", "run", run)["recipeDigest"]

    def refused(run_id: int, recipe: bytes, client: str = "", sender: str = "ann") -> tuple[str, tuple[Any, ...]]:
        with pytest.raises(Reverted) as raised:
            chain.call("Training", "join", run_id, recipe, bytes(20), client, sender=sender)
        return raised.value.name, raised.value.values

    assert refused(99, digest) == ("UnknownRun", (99,))
    assert refused(run, make_hash("r")) == ("RecipeMismatch", (digest, make_hash("r")))
    assert refused(run, digest) == ("NotAllowed", (run, make_address("ann")))
    chain.call("Training", "allow", run, [make_address("ann"), make_address("bob")], True, sender="owner")
    assert chain.view("Training", "isAllowed", run, make_address("ann"))
    assert refused(run, digest, "c" * 65)[0] == "BadParams"
    chain.call("Training", "join", run, digest, bytes(20), "c", sender="ann")
    assert chain.struct("Training", "member", run, make_address("ann"))["payout"] == make_address("ann")
    assert refused(run, digest) == ("AlreadyMember", (run, make_address("ann")))
    chain.call("Training", "join", run, digest, bytes(20), "c", sender="bob")  # who only joined takes no place
    head = chain.struct("Training", "run", run)["headRoot"]
    chain.call("Training", "ready", run, head, sender="ann")
    with pytest.raises(Reverted) as full:
        chain.call("Training", "ready", run, head, sender="bob")
    assert (full.value.name, full.value.values) == ("RunFull", (1,))
    chain.call("Training", "allow", run, [make_address("cem")], True, sender="owner")
    assert refused(run, digest, sender="cem") == ("RunFull", (1,))
    with pytest.raises(Reverted) as unknown:
        chain.call("Training", "ready", run, make_hash("?"), sender="ann")
    assert unknown.value.name == "UnknownRoot"


def test_views_of_what_is_not_there(chain: Chain) -> None:
    assert chain.struct("Training", "run", 7)["state"] == 0
    run = chain.create_run()
    assert chain.struct("Training", "round", run, 5) == {
        **chain.struct("Training", "round", run, 5),
        "round": 5,
        "state": 0,
    }
    assert chain.struct("Training", "member", run, make_address("eve"))["state"] == 0
    assert chain.struct("Training", "checkpointAt", run, 3)["state"] == 0
    for function in ("participants", "updates", "votes"):
        with pytest.raises(Reverted, match="UnknownRound"):
            chain.view("Training", function, run, 2**64 - 1)
    for function, args in (("round", (7, 0)), ("member", (7, bytes(20))), ("members", (7,)), ("recipe", (7,))):
        with pytest.raises(Reverted, match="UnknownRun"):
            chain.view("Training", function, *args)
    assert chain.view("Training", "recipe", run) == b"F = 4\n"
    assert chain.view("Training", "evaluations", run, 2**64 - 1, 2**64 - 1) == ()


def test_self_reported_numbers_saturate(chain: Chain) -> None:
    run = chain.create_run(numFragments=1, overlap=0)
    chain.join(run, "ann")
    chain.advance()
    for t in range(2):
        chain.commit(run, t, "ann", tokens=2**64 - 1)
        chain.advance()
        chain.attest(run, t, "ann")
        chain.advance()
    assert chain.struct("Training", "member", run, make_address("ann"))["tokens"] == 2**64 - 1


def test_gas_is_published_charged_and_small() -> None:
    chain, run = make_busy_chain()
    chain.commit(run, 1, "bob")
    assert 200_000 < chain.gas_used < 1_000_000
    writes = {f.name for c in DECLARATIONS.values() for f in c.functions if f.mutability is not Mutability.VIEW}
    assert set(WRITE_GAS) == writes
    assert all(gas < 1_000_000 for gas in WRITE_GAS.values())
    with pytest.raises(OutOfGas):
        chain.call("Training", "leave", run, sender="ann", gas=59_999)
    chain.call("Training", "leave", run, sender="ann", gas=CALL_GAS)


def test_every_refusal_and_event_in_the_sources_is_declared() -> None:
    """Names and numbers of values are checked against the declarations, where they are literal."""
    core = Path(contracts_package.__file__).parent.parent
    errors = {e.name: len(e.fields) for c in DECLARATIONS.values() for e in c.errors}
    events = {e.name: len(e.fields) for c in DECLARATIONS.values() for e in c.events}
    seen: set[str] = set()
    for path in [*core.glob("contracts/**/*.py"), *core.glob("rounds/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            literals = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if name == "Refusal" and isinstance(node.args[0], ast.Constant):
                assert errors[literals[0]] == len(node.args) - 1, (path.name, node.lineno)
                seen.add(literals[0])
            if name == "emit" and isinstance(node.args[0], ast.Constant):  # RunBook.emit puts the run first
                assert events[literals[0]] == len(node.args), (path.name, node.lineno)
                seen.add(literals[0])
            elif name == "emit" and literals:
                assert events[literals[0]] == len(node.args) - 2, (path.name, node.lineno)
                seen.add(literals[0])
    unused = (set(errors) | set(events)) - seen
    assert unused <= {"NotDrawn"}, f"declared and never used: {unused}"
