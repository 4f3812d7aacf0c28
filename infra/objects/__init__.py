"""Object store over S3 and compatible stores."""

from infra.objects.client import S3Buckets, make_client, read_store_clock_s
from infra.objects.retries import DeleteRate, Retries
from infra.objects.store import S3ObjectStore

__all__ = ["DeleteRate", "Retries", "S3Buckets", "S3ObjectStore", "make_client", "read_store_clock_s"]
