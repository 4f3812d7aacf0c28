"""Object store over S3 and compatible stores."""

from infra.objects.object_deletes import DeleteRate
from infra.objects.s3_responses import RequestRetries
from infra.objects.s3_store import (
    FAST_TIMEOUTS,
    S3BucketsByLocation,
    S3ObjectStore,
    create_s3_client,
    read_store_clock_s,
)

__all__ = [
    "FAST_TIMEOUTS",
    "DeleteRate",
    "RequestRetries",
    "S3BucketsByLocation",
    "S3ObjectStore",
    "create_s3_client",
    "read_store_clock_s",
]
