"""Inputs of bulk jobs: listings, inventories, tables and segments, cut into parts."""
