"""Two-phase deletion in SQL: phase one, the queue of phase two, and upkeep."""
