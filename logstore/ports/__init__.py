"""Protocols that `infra` and `spark` implement and `workers/assembly` injects."""
