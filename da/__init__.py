"""Data availability: bytes in, commitments out."""
