"""Inspection, proof of absence, and removal of copies in storage."""
