"""The histories stand on the drivers of two other folders."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
for _folder in (_HERE, _HERE.parent / "contracts_native", _HERE.parent / "chain"):
    sys.path.insert(0, str(_folder))
