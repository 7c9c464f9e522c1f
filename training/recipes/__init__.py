"""Recipes that are shipped: ``demo`` (minutes on two cores) and ``tiny`` (seconds, for tests)."""
