"""Transactions in any order of events, judged by a serial model."""
