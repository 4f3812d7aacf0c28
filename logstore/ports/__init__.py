"""Protocols that `infra` and `spark` implement and `workers/assembly.py` injects."""
