"""Object store over S3 and compatible stores."""

from infra.objects.request_retries import DeleteRate, Retries
from infra.objects.s3_client import S3Buckets, make_client, read_store_clock_s
from infra.objects.s3_store import S3ObjectStore

__all__ = ["DeleteRate", "Retries", "S3Buckets", "S3ObjectStore", "make_client", "read_store_clock_s"]
