"""A frame's code, with its jump targets found in one pass and remembered.

py-evm looks back from each target, again in every frame: code made of PUSH bytes takes 80 ms for a jump that pays
8 gas, and recurses as deep as the code is long.  Here a pass over 24,576 bytes takes about a millisecond, once for
each code that a transaction touches, for which it paid at least 2,600 gas.
"""

from __future__ import annotations

from functools import lru_cache

from eth.vm.code_stream import CodeStream

JumpTargets = dict[bytes, bytes]
"""Code -> one byte for each position: 1 where a jump may land."""

_JUMPDEST = 0x5B
_PUSH1 = 0x60
_PUSH32 = 0x7F
_REMEMBERED_CODES = 256
"""Across transactions: at most 12 MiB, since a code has at most 24,576 bytes and initcode twice that."""


class EvmCode(CodeStream):
    """The code stream of one frame."""

    __slots__ = ("_known",)

    def __init__(self, code: bytes, known: JumpTargets) -> None:
        """Read ``code``; ``known`` is the transaction's."""
        super().__init__(code)
        self._known = known

    def is_valid_opcode(self, position: int) -> bool:
        """Say whether a jump may land on a position that holds JUMPDEST."""
        code = self._raw_code_bytes
        targets = self._known.get(code)
        if targets is None:
            targets = self._known[code] = find_jump_targets(code)
        return position < len(targets) and targets[position] == 1


@lru_cache(maxsize=_REMEMBERED_CODES)
def find_jump_targets(code: bytes) -> bytes:
    """Mark every JUMPDEST that isn't the data of a PUSH."""
    targets = bytearray(len(code))
    position = 0
    end = len(code)
    while position < end:
        opcode = code[position]
        if opcode == _JUMPDEST:
            targets[position] = 1
        elif _PUSH1 <= opcode <= _PUSH32:
            position += opcode - _PUSH1 + 1
        position += 1
    return bytes(targets)
