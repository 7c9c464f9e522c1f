"""One type per meaning across the chain's module borders."""

from __future__ import annotations

from typing import NewType

Address = NewType("Address", bytes)
"""20 bytes."""
Amount = NewType("Amount", int)
"""Wei, 0 .. 2^256-1; 10^18 wei are one token, priced at one dollar in the devnet's tables."""
Height = NewType("Height", int)
"""Block height; block 0 is genesis."""
Nonce = NewType("Nonce", int)
"""Count of a sender's executed transactions."""
Hash = NewType("Hash", bytes)
"""32 bytes."""
RunId = NewType("RunId", int)
"""1 .. numRuns."""
RoundIndex = NewType("RoundIndex", int)
"""t, from 0."""
Version = NewType("Version", int)
"""Number of settled rounds behind a state: version 0 is genesis, round t leads from t to t+1."""
Root = NewType("Root", bytes)
"""32 bytes: root of the agreed training state."""
