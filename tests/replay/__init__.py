"""Histories of real runs, replayed against today's workflows: what is running keeps running after an upgrade."""
