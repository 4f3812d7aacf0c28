"""Test of object stores: a store that confirms a delete must have removed the object."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from logstore.catalog import open_catalog
from logstore.errors import CatalogMismatch, ServiceFailed, SextonError
from logstore.identity.bucket_markers import PROBE_PREFIX, BucketRole
from logstore.identity.services.marker_checked_buckets import MarkerChecker
from workers.assembly.checked_buckets import make_checked_bucket_opener_by_name, open_primary_bucket
from workers.catalog_match import list_configured_buckets
from workers.settings import Settings

if TYPE_CHECKING:
    from infra.objects import S3ObjectStore

DELETES: Final = "deletes"


def check_bucket_deletes(settings: Settings) -> str:
    """Test deletes in each bucket: put a small object, delete the object, and look for it by HEAD and LIST.

    Each call uses a new key. Buckets of another catalog are not tested.
    """
    if not settings.has_object_store:
        settings.require_address("s3_endpoint")
    store = open_primary_bucket(settings, fails_fast=True)
    role_by_bucket = {bucket: role for role, bucket in list_configured_buckets(settings)}
    with open_catalog(settings.database_url) as catalog, ThreadPoolExecutor(len(role_by_bucket)) as pool:
        own_bucket = make_checked_bucket_opener_by_name(settings, MarkerChecker(catalog.identities), fails_fast=True)

        def find_problem(bucket: str, role: BucketRole) -> str | None:
            try:
                own_bucket(role, bucket).require_ours_or_unmarked()
                return _put_and_delete_probe_object(store.for_bucket(bucket))
            except CatalogMismatch:
                return "deletes are not tested in a bucket that is not this catalog's"
            except SextonError as error:
                return f"deletes cannot be tested: {error}"

        problems = list(pool.map(find_problem, role_by_bucket, role_by_bucket.values()))
    texts = [f"bucket {bucket}: {problem}" for bucket, problem in zip(role_by_bucket, problems, strict=True) if problem]
    if texts:
        raise ServiceFailed(
            "object store", "; ".join(texts), advice="docs/reference/object-store.md says what it needs"
        )
    return f"a probe object is gone after its delete in {', '.join(role_by_bucket)}"


def _put_and_delete_probe_object(store: "S3ObjectStore") -> str | None:
    key, body = f"{PROBE_PREFIX}{uuid4().hex}", b"A probe of `sexton doctor`. It may be deleted.\n"
    try:
        store.put_if_absent(key, body, metadata={})
        stored = store.get(key)
    except SextonError:
        with suppress(SextonError):  # a put without an answer may have stored the object
            store.delete([key])
        raise
    if reason := store.delete([key]).failed.get(key):
        return f"the store refuses to delete {key}, which stays: {reason}"
    if stored is None or stored.body != body:
        return f"the store confirmed {key} and does not return it"
    methods = [
        *(["HEAD"] if store.head(key) else []),
        *(["LIST"] if any(listed.key == key for listed in store.list(key)) else []),
    ]
    if not methods:
        return None
    finds = f"{' and '.join(methods)} find{'s' if len(methods) == 1 else ''} it"
    return f"the store confirmed a delete that it did not do ({key}: {finds}). Sexton supports no such store"
