"""The Staking contract: bonds, validators and governance."""
