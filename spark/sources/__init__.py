"""Inputs of bulk jobs, cut into parts: listings, inventories, tables and segments."""
