"""The form of each kind of setting: addresses, durations, names, paths."""

import re
from collections.abc import Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr

from logstore.errors import InvalidInput
from logstore.reconciliation.spark_master import FORMS, is_master

_MOST_PATH: Final = 4_096
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/,]+):(?P<port>[0-9]{1,5})")
_PATH = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)+")
_IDENTITY = re.compile(r"(?!sasl:)[a-z0-9]+:.+|sasl:[^:]+:.+")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:(?P<name>[A-Za-z_]\w{0,63})", re.ASCII)
_DURATION = re.compile(r"(?P<count>[0-9]{1,12})(?P<unit>[smhd])")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}  # largest first: `format_duration` takes the first that fits
LONGEST_S = 36_500 * 86_400
"""Longest duration, seconds, inclusive."""
_EXPECTED = "a duration such as 90s, 15m, 24h or 3d, at most 36500d"


def parse_duration(text: str, field: str) -> int:
    """Read a duration as seconds, 0 to 36,500 days inclusive.

    Args:
        text: A whole number with one unit; no sign, no fraction, no sum of several.
        field: Its name in an error.

    Raises:
        InvalidInput: Any other text.
    """
    found = _DURATION.fullmatch(text.strip()) if text.isascii() else None
    seconds = int(found["count"]) * _SECONDS[found["unit"]] if found else -1
    if not 0 <= seconds <= LONGEST_S:
        raise InvalidInput(field, expected=_EXPECTED, found=text)
    return seconds


def format_duration(seconds: int) -> str:
    """Write seconds (0 or more) with the largest unit that loses nothing; `parse_duration` reads it back."""
    if seconds == 0:
        return "0s"
    unit = next(unit for unit, size in _SECONDS.items() if seconds % size == 0)
    return f"{seconds // _SECONDS[unit]}{unit}"


def _like(pattern: str, rule: str) -> Callable[[str], str]:
    """A check that lets a text pass which the whole pattern matches; otherwise `ValueError` says the rule."""
    form = re.compile(pattern)

    def checked(value: str) -> str:
        if not form.fullmatch(value):
            raise ValueError(rule)
        return value

    return checked


_LETTERS: Final = "of A-Z, a-z, 0-9, dot, underscore, hyphen"
bucket_name = _like(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "a bucket name: 3 to 63 of a-z, 0-9, dot and hyphen")
word = _like(r"(?!\.\.?$)[A-Za-z0-9._-]{1,64}", f"1 to 64 {_LETTERS}, not . or ..")
_server = _like(
    r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", "the name or the address of a server, without a port"
)
_deployment = _like(  # a dot would end it in Temporal's own texts
    r"[A-Za-z0-9_/-]{0,128}", "1 to 128 of A-Z, a-z, 0-9, underscore, hyphen, slash"
)
_build = _like(  # as the worker controller's
    r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
    f"1 to 63 {_LETTERS}, first and last a letter or a digit",
)


def spark_master(value: str) -> str:
    """The value, if it is a Spark master; otherwise `ValueError` says the rule."""
    if not is_master(value):
        raise ValueError(FORMS)
    return value


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value, "duration")
    except InvalidInput:
        raise ValueError("a duration such as 90s, 15m, 24h or 3d") from None


def no_truth_value(value: object) -> object:
    """The value, unless it is true or false: Python would count them as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a whole number")  # noqa: TRY004 - pydantic turns only ValueError into its own report
    return value


def _addresses(value: str) -> str:
    for part in filter(None, value.split(",")):
        found = _ADDRESS.fullmatch(part)
        if not found or int(found["port"]) > 65_535 or not part.isprintable():
            raise ValueError("host:port")
    return value


def _address(value: str) -> str:
    if "," in value:
        raise ValueError(
            "one host:port, of a load balancer or of a name that resolves to all frontends where there are several"
        )
    return _addresses(value)


def _ensemble(value: str) -> str:
    hosts, slash, path = value.partition("/")
    try:
        _addresses(hosts)
    except ValueError:
        hosts = ""
    if value and (not all(hosts.split(",")) or (slash and not _PATH.fullmatch(slash + path))):
        raise ValueError("host:port, several separated by commas, and then perhaps a path, as in host:2181/sexton")
    return value


def _identity(value: SecretStr) -> SecretStr:
    if value.get_secret_value() and not _IDENTITY.fullmatch(value.get_secret_value()):
        raise ValueError("scheme:credential, as in digest:user:password or sasl:user:password")
    return value


OFF: Final = "off"
"""An address at which nothing listens: the empty one, by a name, because an empty variable counts as absent."""


def _listening(value: str) -> str:
    if value in {"", OFF}:
        return OFF
    if "," in value:
        raise ValueError("host:port, or off")
    return _addresses(value)


def _web_address(value: str) -> str:
    parts = urlsplit(value)
    if value and not (parts.scheme in {"http", "https"} and parts.netloc and value.isprintable()):
        raise ValueError("an address that begins with http:// or https://")
    return value


def _buckets(value: str) -> str:
    return ",".join(map(bucket_name, dict.fromkeys(value.replace(" ", "").split(",")))) if value else ""


def _functions(value: str) -> str:
    references = list(dict.fromkeys(value.replace(" ", "").split(","))) if value else []
    found = [_FUNCTION.fullmatch(one) for one in references]
    if len({one["name"] for one in found if one}) < len(references):
        raise ValueError("module:function, several separated by commas, each function's name once")
    return ",".join(references)


def _absolute(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or len(value) > _MOST_PATH:
        raise ValueError("an absolute path")
    return value


def upper(value: object) -> object:
    """A text in capital letters; anything else as it is."""
    return value.upper() if isinstance(value, str) else value


Seconds = Annotated[
    int,
    BeforeValidator(_duration),
    BeforeValidator(no_truth_value),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    Field(le=LONGEST_S),
]
Interval = Annotated[Seconds, Field(ge=0, le=30 * 86_400)]  # of a recurring job; 0: it does not recur
Count = Annotated[int, BeforeValidator(no_truth_value), Field(ge=1, le=2**63 - 1)]
Port = Annotated[int, BeforeValidator(no_truth_value), Field(ge=0, le=65_535)]  # 0: any free one
Address = Annotated[str, AfterValidator(_address)]
Ensemble = Annotated[str, AfterValidator(_ensemble)]
Identity = Annotated[SecretStr, AfterValidator(_identity)]
Listening = Annotated[str, AfterValidator(_listening)]  # port 0: any free one
WebAddress = Annotated[str, AfterValidator(_web_address)]
Bucket = Annotated[str, AfterValidator(bucket_name)]
BucketList = Annotated[str, AfterValidator(_buckets)]  # separated by commas
FunctionList = Annotated[str, AfterValidator(_functions)]  # separated by commas
Word = Annotated[str, AfterValidator(word)]
ServerName = Annotated[str, AfterValidator(_server)]
DeploymentName = Annotated[str, AfterValidator(_deployment)]
BuildId = Annotated[str, AfterValidator(_build)]
Folder = Annotated[str, AfterValidator(_absolute)]
File = Annotated[str, AfterValidator(_absolute)]
Master = Annotated[str, AfterValidator(spark_master)]  # of a Spark cluster
