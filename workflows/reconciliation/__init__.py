"""Durable jobs of reconciliation: a plan, which changes nothing, and the apply of one."""
