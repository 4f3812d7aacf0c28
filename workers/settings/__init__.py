"""Settings as one validated, immutable value, with the origin of each field."""

from logstore.setting_files import read_secret_file
from workers.settings.model import SERVICE_SETTINGS, Settings
from workers.settings.setting_types import OFF, format_duration, parse_duration
from workers.settings.sources import (
    DEFAULT_HOME,
    LoadedSettings,
    RecordReader,
    load_settings,
    read_stack_record,
    read_temporal_api_key,
)

__all__ = [
    "DEFAULT_HOME",
    "OFF",
    "SERVICE_SETTINGS",
    "LoadedSettings",
    "RecordReader",
    "Settings",
    "format_duration",
    "load_settings",
    "parse_duration",
    "read_secret_file",
    "read_stack_record",
    "read_temporal_api_key",
]
