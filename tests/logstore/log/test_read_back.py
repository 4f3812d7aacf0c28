"""Objects that were uploaded, as a HEAD shows them afterwards."""

from collections.abc import Mapping

import pytest

from logstore.errors import UploadUnproven
from logstore.log.services.upload_read_back import require_stored_object
from tests.fakes.object_store import FakeObjectStore

_KEY = "k"
_METADATA = {"digest": "d", "owner": "o"}


def _store(metadata: Mapping[str, str]) -> FakeObjectStore:
    objects = FakeObjectStore()
    objects.put_if_absent(_KEY, b"body", metadata=metadata)
    return objects


def test_entry_that_a_gateway_adds_to_the_metadata_is_no_difference() -> None:
    """Every upload would be unproven otherwise, for ever."""
    for metadata in (_METADATA, _METADATA | {"x-gateway": "7"}):
        info = require_stored_object(_store(metadata), _KEY, size_bytes=4, metadata=_METADATA)
        assert (info.key, info.size_bytes) == (_KEY, 4)


@pytest.mark.parametrize("stored", [{}, {"digest": "d"}, _METADATA | {"digest": "another"}])
def test_entry_that_lacks_or_differs_leaves_the_upload_unproven(stored: Mapping[str, str]) -> None:
    """The message names what was expected and what was found."""
    with pytest.raises(UploadUnproven, match=r"expected 4 bytes of .*'owner': 'o'.* found 4 bytes of"):
        require_stored_object(_store(stored), _KEY, size_bytes=4, metadata=_METADATA)


def test_object_of_another_length_or_none_leaves_the_upload_unproven() -> None:
    """Whatever its metadata says."""
    with pytest.raises(UploadUnproven, match="expected 5 bytes"):
        require_stored_object(_store(_METADATA), _KEY, size_bytes=5, metadata=_METADATA)
    with pytest.raises(UploadUnproven, match="the object is not there"):
        require_stored_object(FakeObjectStore(), _KEY, size_bytes=4, metadata=_METADATA)
