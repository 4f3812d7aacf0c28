"""Commands of `sexton orphans`."""
