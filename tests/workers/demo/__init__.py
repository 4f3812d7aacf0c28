"""Tests of the demo's parts."""
