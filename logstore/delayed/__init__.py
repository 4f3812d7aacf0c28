"""Delayed messages, and an index of those that are not due. With the index, readers do not fetch them too early."""
