"""The ABI of the system contracts, declared once."""
