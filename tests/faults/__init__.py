"""Faults between any two effects: in one process by raising, in real processes by SIGKILL, judged from outside."""
