"""Pure rules of the store: tiers, quota, expiry, byte layouts, errors."""
