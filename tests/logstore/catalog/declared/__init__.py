"""Declared tables and what is written from them."""
