"""Methods that read a state, or run a call on a throwaway overlay over it.

A block parameter may name one of the last blocks by tag, number or hash (``chain.rpc.state_views``).  A call's gas is
capped; nothing it does is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

from chain.core import accounts
from chain.core.errors import InvalidTransaction
from chain.core.estimate import estimate_gas as compute_estimate
from chain.core.evm.execution import needs_evm
from chain.core.evm.gas import compute_intrinsic_gas
from chain.core.evm.layout import get_code as read_code
from chain.core.evm.layout import get_slot
from chain.core.executor import CallResult, Watch, simulate_call
from chain.core.hashing import keccak256
from chain.core.records import AccessList
from chain.core.types import Address, Amount
from chain.rpc.block_overrides import override_block
from chain.rpc.faults import CallFailed, CallRefused, CallTooLong, InvalidParams, Reverted
from chain.rpc.heads import CallKey
from chain.rpc.overrides import check_overrides, override
from chain.rpc.session import Method, Session
from chain.rpc.state_views import StateView, open_view
from chain.rpc.tips import suggest_tip
from chain.rpc.values import Params, hex_data, is_newest_tag, parse_data, parse_quantity, quantity
from chain.rpc.views import view_access_list
from chain.version import describe_software

MAX_CALL_GAS = 50_000_000
"""Most gas of one eth_call to a system contract: a view may be dearer than a transaction could be."""
EVM_SECONDS = 3.0
"""Longest run of one call in the EVM, all tries of an estimate together: the gas of a whole block takes about two."""
MAX_ACCESS_LIST_RUNS = 8
"""Until eth_createAccessList's list must be complete: each run may only add to it."""

_ABSENT_FIELDS = {
    "authorizationList": "4 (EIP-7702, set code)",
    "blobVersionedHashes": "3 (EIP-4844, blobs)",
    "blobs": "3 (EIP-4844, blobs)",
}
"""Whoever gave them would get the answer to another question."""
_ZERO_ADDRESS = Address(bytes(20))
_KEY_ORDER = ("to", "data", "input", "from", "value", "gas")
_KEY_FIELDS = frozenset(_KEY_ORDER)
"""Of a call whose answer may be remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """The transaction object of eth_call and eth_estimateGas."""

    sender: Address
    to: Address | None
    value: Amount
    data: bytes
    gas_limit: int
    access_list: AccessList


def get_chain_id(session: Session, params: Params) -> str:
    """eth_chainId."""
    return quantity(session.snapshot.genesis_info().evm_chain_id)


def get_network_version(session: Session, params: Params) -> str:
    """net_version: the chain id in decimal."""
    return str(session.snapshot.genesis_info().evm_chain_id)


def get_client_version(session: Session, params: Params) -> str:
    """web3_clientVersion."""
    return describe_software()


def compute_sha3(session: Session, params: Params) -> str:
    """web3_sha3."""
    return hex_data(keccak256(parse_data(params.raw(0, "data"), "data")))


def get_accounts(session: Session, params: Params) -> list[str]:
    """eth_accounts: the node holds no keys."""
    return []


def is_listening(session: Session, params: Params) -> bool:
    """net_listening."""
    return True


def get_gas_price(session: Session, params: Params) -> str:
    """eth_gasPrice."""
    return quantity(session.head.environment.parameters.base_fee + _suggest_tip(session))


def get_priority_fee(session: Session, params: Params) -> str:
    """eth_maxPriorityFeePerGas."""
    return quantity(_suggest_tip(session))


def get_balance(session: Session, params: Params) -> str:
    """eth_getBalance."""
    params.at_most(2)
    address = params.address(0, "address")
    return quantity(accounts.get_balance(open_view(session, params, 1).state, address))


def get_transaction_count(session: Session, params: Params) -> str:
    """eth_getTransactionCount of a block; ``pending`` is answered by the queue instead."""
    params.at_most(2)
    address = params.address(0, "address")
    return quantity(accounts.get_nonce(open_view(session, params, 1).state, address))


def get_code(session: Session, params: Params) -> str:
    """eth_getCode; a system contract has the one byte 0xfe (INVALID)."""
    params.at_most(2)
    address = params.address(0, "address")
    return hex_data(read_code(open_view(session, params, 1).state, address))


def get_storage_at(session: Session, params: Params) -> str:
    """eth_getStorageAt; system contracts keep no EVM slots, so theirs are zero."""
    params.at_most(3)
    address = params.address(0, "address")
    slot = params.number(1, "slot")
    return hex_data(get_slot(open_view(session, params, 2).state, address, slot).to_bytes(32, "big"))


def _overridable(method: Method) -> Method:
    """Blame balances that the client chose for what an account, or the supply, can't hold; else it is our own fault."""

    @wraps(method)
    def run(session: Session, params: Params) -> Any:
        try:
            return method(session, params)
        except OverflowError as error:
            if not params.raw(2, "state overrides", None):
                raise
            raise CallRefused(
                "the overridden balances come to more than 2^256 - 1 wei, or burn more than there is;"
                " next: choose smaller ones"
            ) from error

    return run


@_overridable
def call(session: Session, params: Params) -> str:
    """eth_call; a call to an address without a contract returns no data, as on Ethereum."""
    params.at_most(4)
    key = _make_key(params)
    known = session.head.answers.get(key) if key is not None else None
    if known is not None:
        return known
    request = parse_call(params.raw(0, "transaction"))
    view = _open_overridden(session, params)
    shown = hex_data(_checked(_simulate(session, view, request, make_watch(EVM_SECONDS)), request).output)
    if key is not None and request.to in session.contracts:
        session.head.keep(key, shown)
    return shown


@_overridable
def estimate_gas(session: Session, params: Params) -> str:
    """eth_estimateGas: a limit with which the transaction succeeds in the next block, or in one that is as wanted."""
    params.at_most(4)
    request = parse_call(params.raw(0, "transaction"))
    view = _open_overridden(session, params)
    request = _cap_gas(session, view, request)
    is_chosen = bool(params.raw(3, "block overrides", None))
    try:
        estimate, result = compute_estimate(
            view.state,
            view.evm_environment()
            if is_chosen or not view.is_newest
            else session.snapshot.environment(is_pending=True),
            sender=request.sender,
            to=request.to,
            value=request.value,
            data=request.data,
            gas_limit=request.gas_limit,
            contracts=session.contracts,
            access_list=request.access_list,
            watch=make_watch(EVM_SECONDS),
        )
    except InvalidTransaction as e:
        raise CallRefused(str(e)) from e
    _checked(result, request)
    return quantity(estimate)


@_overridable
def create_access_list(session: Session, params: Params) -> dict[str, Any]:
    """eth_createAccessList: what a call touches in the EVM, and what it would use with that list."""
    params.at_most(3)
    request = parse_call(params.raw(0, "transaction"))
    view = _open_overridden(session, params)
    watch = make_watch(EVM_SECONDS)
    for _ in range(MAX_ACCESS_LIST_RUNS):
        result = _simulate(session, view, request, watch, is_traced=True)
        touched = merge_access_lists(request.access_list, result.access_list)
        if touched == request.access_list:
            break
        request = replace(request, access_list=touched)
    shown: dict[str, Any] = {"accessList": view_access_list(touched), "gasUsed": quantity(result.gas_used)}
    return shown if result.status else {**shown, "error": result.error}


def merge_access_lists(first: AccessList, second: AccessList) -> AccessList:
    """Return everything that is in either, ascending."""
    slots: dict[Address, set[bytes]] = {}
    for address, words in (*first, *second):
        slots.setdefault(address, set()).update(words)
    return tuple((address, tuple(sorted(slots[address]))) for address in sorted(slots))


def parse_call(value: Any) -> CallRequest:
    """Read a transaction object; fees and nonce are not looked at."""
    if not isinstance(value, dict):
        raise InvalidParams(f"transaction is {str(value)[:80]!r}, expected an object")
    for name, kind in _ABSENT_FIELDS.items():
        if value.get(name):
            raise InvalidParams(f"transaction has {name}, and type {kind} is not supported here: leave it out")
    data, data_in_input = value.get("data"), value.get("input")
    if data is not None and data_in_input is not None and data != data_in_input:
        raise InvalidParams("transaction has both data and input, and they differ")
    chosen = data_in_input if data_in_input is not None else data
    gas = value.get("gas")
    return CallRequest(
        sender=_read_address(value.get("from"), "from") or _ZERO_ADDRESS,
        to=_read_address(value.get("to"), "to"),
        value=Amount(0 if value.get("value") is None else parse_quantity(value["value"], "value")),
        data=b"" if chosen is None else parse_data(chosen, "data"),
        gas_limit=MAX_CALL_GAS if gas is None else min(parse_quantity(gas, "gas"), MAX_CALL_GAS),
        access_list=_read_access_list(value.get("accessList")),
    )


def make_watch(seconds: float) -> Watch:
    """Return what ends a call in the EVM that runs for longer than ``seconds`` from now."""
    end = time.monotonic() + seconds

    def watch() -> None:
        if time.monotonic() > end:
            raise CallTooLong(seconds)

    return watch


def _suggest_tip(session: Session) -> int:
    head = session.head
    if head.suggested_tip is None:
        head.suggested_tip = suggest_tip(session.snapshot)
    return head.suggested_tip


def _open_overridden(session: Session, params: Params) -> StateView:
    """Return the state of the second parameter, with the third's accounts and the fourth's block as wanted."""
    view = open_view(session, params, 1)
    if block := params.raw(3, "block overrides", None):
        view = replace(view, environment=override_block(view.environment, block))
    chosen = check_overrides(params.raw(2, "state overrides", None), session.contracts)
    if not chosen:
        return view
    return replace(view, state=override(view.state, chosen), deep_state=override(view.deep_state, chosen))


def _make_key(params: Params) -> CallKey | None:
    """Return what makes two calls on the newest block the same, None for an unusual one."""
    transaction, block = params.raw(0, "transaction"), params.raw(1, "block", "latest")
    if not isinstance(transaction, dict) or not is_newest_tag(block) or not transaction.keys() <= _KEY_FIELDS:
        return None
    if params.raw(2, "state overrides", None) or params.raw(3, "block overrides", None):
        return None
    key = tuple(transaction.get(name) for name in _KEY_ORDER)
    return key if all(text is None or isinstance(text, str) for text in key) else None


def _simulate(
    session: Session, view: StateView, request: CallRequest, watch: Watch, *, is_traced: bool = False
) -> CallResult:
    is_native = request.to in session.contracts
    request = request if is_native else _cap_gas(session, view, request)
    try:
        return simulate_call(
            # what has left the state is shown to whoever asks a view for it, never to code: a transaction won't see it
            view.deep_state if is_native else view.state,
            view.environment if is_native else view.evm_environment(),
            sender=request.sender,
            to=request.to,
            value=request.value,
            data=request.data,
            gas_limit=request.gas_limit,
            contracts=session.contracts,
            access_list=request.access_list,
            is_traced=is_traced,
            watch=watch,
        )
    except InvalidTransaction as e:
        raise CallRefused(str(e)) from e


def _cap_gas(session: Session, view: StateView, request: CallRequest) -> CallRequest:
    """Lower the gas of a call that runs in the EVM to what a transaction can have."""
    evm_limit = view.environment.parameters.evm_gas_limit + _intrinsic_gas(request)
    if request.gas_limit > evm_limit and needs_evm(view.state, request.to, session.contracts):
        return replace(request, gas_limit=evm_limit)
    return request


def _intrinsic_gas(request: CallRequest) -> int:
    return compute_intrinsic_gas(request.data, is_creation=request.to is None, access_list=request.access_list)


def _checked(result: CallResult, request: CallRequest) -> CallResult:
    if result.status:
        return result
    if result.is_revert:
        raise Reverted(result)
    raise CallFailed(f"{result.error}; the call had {min(request.gas_limit, MAX_CALL_GAS)} gas at most")


def _read_access_list(value: Any) -> AccessList:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InvalidParams("accessList is no list of {address, storageKeys}")
    return tuple(
        (
            Address(parse_data(entry.get("address"), "accessList address", 20)),
            tuple(parse_data(key, "accessList storage key", 32) for key in entry.get("storageKeys") or ()),
        )
        for entry in value
    )


def _read_address(value: Any, name: str) -> Address | None:
    return None if value is None else Address(parse_data(value, name, 20))


STATE_METHODS: Mapping[str, Method] = {
    "eth_chainId": get_chain_id,
    "net_version": get_network_version,
    "net_listening": is_listening,
    "web3_clientVersion": get_client_version,
    "web3_sha3": compute_sha3,
    "eth_accounts": get_accounts,
    "eth_gasPrice": get_gas_price,
    "eth_maxPriorityFeePerGas": get_priority_fee,
    "eth_getBalance": get_balance,
    "eth_getTransactionCount": get_transaction_count,
    "eth_getCode": get_code,
    "eth_getStorageAt": get_storage_at,
    "eth_call": call,
    "eth_estimateGas": estimate_gas,
    "eth_createAccessList": create_access_list,
}
"""By JSON-RPC name."""
