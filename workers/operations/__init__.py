"""What an operator does: bring the stack up, ask how it is, apply schedules, see owners."""
