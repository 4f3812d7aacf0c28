"""The object store over S3 and its compatibles."""

from infra.objects.client import S3Buckets, clock_s, make_client
from infra.objects.retries import DeleteRate, Retries
from infra.objects.store import S3ObjectStore

__all__ = ["DeleteRate", "Retries", "S3Buckets", "S3ObjectStore", "clock_s", "make_client"]
