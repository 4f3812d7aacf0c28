"""Protocols that `infra` and `spark` implement and `workers/wiring.py` injects."""
