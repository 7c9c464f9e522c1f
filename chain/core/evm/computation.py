"""py-evm's Prague rules with this chain's precompiles, and two corrections.

1. The initcode's gas is charged at depth 0 only: py-evm takes any frame whose sender is the origin for the first
   one, so an account that calls itself and creates would pay twice (``CREATE`` charges by itself).
2. ``SELFDESTRUCT`` warns through Python's warnings in py-evm; here it is just an opcode.
"""

from __future__ import annotations

from typing import Any

from eth.vm import mnemonics, opcode_values
from eth.vm.forks.byzantium.opcodes import ensure_no_static
from eth.vm.forks.cancun.logic import selfdestruct_eip6780
from eth.vm.forks.prague.computation import PragueComputation
from eth.vm.forks.prague.opcodes import PRAGUE_OPCODES
from eth.vm.forks.tangerine_whistle.constants import GAS_SELFDESTRUCT_EIP150
from eth.vm.opcode import as_opcode


class EvmComputation(PragueComputation):
    """One frame."""

    opcodes = {
        **PRAGUE_OPCODES,
        opcode_values.SELFDESTRUCT: as_opcode(
            logic_fn=ensure_no_static(selfdestruct_eip6780),
            mnemonic=mnemonics.SELFDESTRUCT,
            gas_cost=GAS_SELFDESTRUCT_EIP150,
        ),
    }

    @property
    def is_origin_computation(self) -> bool:
        """Say whether this is the transaction's first frame."""
        return bool(self.msg.depth == 0)

    @property
    def precompiles(self) -> Any:
        """Return what runs in place of code, by address: Ethereum's and the system contracts."""
        return self.state.precompiles  # type: ignore[attr-defined]
