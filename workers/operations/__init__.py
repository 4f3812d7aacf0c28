"""Actions of an operator: start and stop the stack, check services, deploy builds, list and unload bundle owners."""
