"""`make demo`: two workers, one killed on the way, a live table, and what the chain says afterwards."""
