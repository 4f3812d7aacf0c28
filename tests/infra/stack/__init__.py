"""Whether the embedded servers start, stay apart, recover and stop."""
