"""Actions of an operator: start and stop the stack, ask for its status, deploy builds, see owners."""
