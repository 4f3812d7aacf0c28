"""The object store over S3 and its compatibles."""

from infra.objects.client import clock_s, connect, ensure_bucket, make_client
from infra.objects.patience import Pace, Patience
from infra.objects.places import Places
from infra.objects.store import S3ObjectStore

__all__ = ["Pace", "Patience", "Places", "S3ObjectStore", "clock_s", "connect", "ensure_bucket", "make_client"]
