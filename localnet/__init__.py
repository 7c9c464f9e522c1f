"""A devnet on one machine and the demo."""
