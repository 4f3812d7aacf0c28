"""The soak: every job at once on real servers, seeded faults, and an auditor of its own; `make soak` runs it."""
