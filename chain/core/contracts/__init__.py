"""The native system contracts: Training, Storage, Staking."""
