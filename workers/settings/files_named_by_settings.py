"""Secrets that are either in a setting or in the file that another setting names."""

from logstore.errors import InvalidInput
from logstore.setting_files import read_secret_file
from workers.settings.model import Settings


def read_temporal_api_key(settings: Settings) -> str:
    """Return the API key for Temporal from its setting or its file, or "". Raise `InvalidInput` if both are set."""
    key, path = settings.temporal_api_key.get_secret_value(), settings.temporal_api_key_file
    if key and path:
        raise InvalidInput("temporal_api_key_file", expected="it or temporal_api_key, not both", found=path)
    return read_secret_file("temporal_api_key_file", path) if path else key
