"""Reference pages of workflows and settings, generated from the code."""
