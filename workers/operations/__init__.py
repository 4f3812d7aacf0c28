"""The acts of an operator: bring the stack up, ask how it is, apply schedules, see owners."""
