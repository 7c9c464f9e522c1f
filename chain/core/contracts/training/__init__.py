"""The Training contract: the ABI's shell around the round machine."""
