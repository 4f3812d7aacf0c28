"""Activities in memory: each outcome, each crash, each fault of storage."""
