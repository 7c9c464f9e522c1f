"""The pure state machine: no I/O, clock, randomness, environment or float."""
