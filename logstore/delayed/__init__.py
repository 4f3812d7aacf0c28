"""Delayed messages: an index of the messages that are not due, so that readers do not fetch them too early."""
