"""Object store over S3 and compatible stores."""

from infra.objects.request_retries import DeleteRate, RequestRetries
from infra.objects.s3_client import FAST_TIMEOUTS, S3BucketsByLocation, create_s3_client, read_store_clock_s
from infra.objects.s3_store import S3ObjectStore

__all__ = [
    "FAST_TIMEOUTS",
    "DeleteRate",
    "RequestRetries",
    "S3BucketsByLocation",
    "S3ObjectStore",
    "create_s3_client",
    "read_store_clock_s",
]
