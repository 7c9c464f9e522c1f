"""`python -m localnet.cometbft`: make sure that the pinned CometBFT is there, and print its path."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from localnet.cometbft.build import CometBftBuildError, provide

ROOT = Path(__file__).resolve().parents[2]
"""The project's root."""


def main() -> int:
    """Build or find the binary; exit code 1 with the reason otherwise."""
    try:
        provide(ROOT, os.environ)
    except CometBftBuildError as error:
        print(f"CometBFT: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
