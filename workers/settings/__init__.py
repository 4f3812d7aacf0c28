"""Settings: one validated, immutable value, and for each field where it came from."""

from workers.settings.files import read_secret, temporal_api_key
from workers.settings.kinds import OFF, format_duration, parse_duration
from workers.settings.model import SERVICES, Settings
from workers.settings.sources import DEFAULT_HOME, LoadedSettings, Recorded, load_settings, read_recorded

__all__ = [
    "DEFAULT_HOME",
    "OFF",
    "SERVICES",
    "LoadedSettings",
    "Recorded",
    "Settings",
    "format_duration",
    "load_settings",
    "parse_duration",
    "read_recorded",
    "read_secret",
    "temporal_api_key",
]
