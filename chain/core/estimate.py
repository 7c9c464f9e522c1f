"""How much gas to send along: the least limit with which a call succeeds, to within 1/64.

A native call or a transfer costs the same with any limit.  In the EVM a limit must cover the peak before refunds,
and what each call holds back for its caller (a 64th, EIP-150), so the gas that was used may not be enough.
"""

from __future__ import annotations

from chain.core.environment import BlockEnvironment, CallResult, Contracts, Watch
from chain.core.executor import simulate_call
from chain.core.records import AccessList
from chain.core.state import Base
from chain.core.types import Address, Amount

CALL_STIPEND = 2_300
"""What a called contract gets on top when money comes along, so a peak may hide it."""
_TOLERANCE_DIVISOR = 64


def estimate_gas(
    base: Base,
    environment: BlockEnvironment,
    *,
    sender: Address,
    to: Address | None,
    value: Amount,
    data: bytes,
    gas_limit: int,
    contracts: Contracts,
    access_list: AccessList = (),
    watch: Watch | None = None,
) -> tuple[int, CallResult]:
    """Return a sufficient limit of at most ``gas_limit``, and what the call does; the limit is 0 where it fails.

    Raises InvalidTransaction where a transaction would be refused.
    """

    def run(limit: int) -> CallResult:
        return simulate_call(
            base,
            environment,
            sender=sender,
            to=to,
            value=value,
            data=data,
            gas_limit=limit,
            contracts=contracts,
            access_list=access_list,
            watch=watch,
        )

    result = run(gas_limit)
    if not result.status:
        return 0, result
    least = max(result.gas_peak, result.gas_used)
    if not result.gas_peak or run(least).status:
        return least, result
    too_little, enough = least, gas_limit
    guess = min((least + CALL_STIPEND) * 64 // 63, gas_limit)
    while enough - too_little > enough // _TOLERANCE_DIVISOR:
        if run(guess).status:
            enough = guess
        else:
            too_little = guess
        guess = (too_little + enough) // 2
    return enough, result
