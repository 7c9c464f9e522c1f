"""The round machine of DESIGN 4.1: one pure piece, driven by the chain, a simulator and tests alike."""
