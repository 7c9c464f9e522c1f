"""What a devnet consists of, and the demo's arithmetic: pure functions and plain values."""
