"""Pure parts of data availability: codes, trees, blob ids, receipts, certificates."""
