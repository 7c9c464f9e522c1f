"""Pure parts of storage: tiers, prices, placement and expiry."""
