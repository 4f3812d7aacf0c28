"""Types of settings with their validation: addresses, durations, names, paths."""

import re
from collections.abc import Callable
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr

from logstore.errors import InvalidInput
from logstore.field_bounds import FUNCTION_NAME_FORM, INTERVAL_S, MAX_DURATION_S, POSITIVE
from logstore.reconciliation.spark_master_url import MASTER_FORMS, is_spark_master_url

_MAX_PATH_CHARS: Final = 4_096
_ADDRESS_PATTERN = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/,]+):(?P<port>[0-9]{1,5})")
_ZOOKEEPER_PATH_PATTERN = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)+")
_IDENTITY_PATTERN = re.compile(r"(?!sasl:)[a-z0-9]+:.+|sasl:[^:]+:.+")
_FUNCTION_PATTERN = re.compile(rf"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:(?P<name>{FUNCTION_NAME_FORM})", re.ASCII)
_DURATION_PATTERN = re.compile(r"(?P<count>[0-9]{1,12})(?P<unit>[smhd])")
_SECONDS_BY_UNIT = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}  # largest first, as `format_duration` needs it
_DURATION_RULE = "a duration such as 90s, 15m, 24h or 3d, at most 36500d"


def parse_duration(text: str, field: str) -> int:
    """Return the seconds of a duration: a whole number with one unit, 0 to 36,500 days inclusive.

    Raises:
        InvalidInput: The text is no duration, or is out of bounds. The error names the setting `field`.
    """
    match = _DURATION_PATTERN.fullmatch(text.strip()) if text.isascii() else None
    seconds = int(match["count"]) * _SECONDS_BY_UNIT[match["unit"]] if match else -1
    if not 0 <= seconds <= MAX_DURATION_S:
        raise InvalidInput(field, expected=_DURATION_RULE, found=text)
    return seconds


def format_duration(seconds: int) -> str:
    """Format seconds, 0 or more, in the largest unit that divides the number. `parse_duration` reads the result."""
    if seconds == 0:
        return "0s"
    unit = next(unit for unit, size in _SECONDS_BY_UNIT.items() if seconds % size == 0)
    return f"{seconds // _SECONDS_BY_UNIT[unit]}{unit}"


def _make_pattern_validator(pattern: str, rule: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def validate(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(rule)
        return value

    return validate


_NAME_CHARACTERS: Final = "of A-Z, a-z, 0-9, dot, underscore, hyphen"
validate_bucket_name = _make_pattern_validator(
    r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "a bucket name: 3 to 63 of a-z, 0-9, dot and hyphen"
)
_validate_pulsar_cluster_name = _make_pattern_validator(  # Pulsar's own rule for names
    r"(?!\.\.?$)[A-Za-z0-9_=:.-]{1,255}", "names of Pulsar clusters, separated by commas"
)
validate_word = _make_pattern_validator(r"(?!\.\.?$)[A-Za-z0-9._-]{1,64}", f"1 to 64 {_NAME_CHARACTERS}, not . or ..")
_validate_server_name = _make_pattern_validator(
    r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", "the name or the address of a server, without a port"
)
_validate_deployment_name = _make_pattern_validator(  # no dot, because Temporal separates name and build id by a dot
    r"[A-Za-z0-9_/-]{0,128}", "1 to 128 of A-Z, a-z, 0-9, underscore, hyphen, slash"
)
_validate_build_id = _make_pattern_validator(  # the rule of Temporal's worker controller
    r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
    f"1 to 63 {_NAME_CHARACTERS}, first and last a letter or a digit",
)


def validate_spark_master(value: str) -> str:
    """Return the value if it is the address of a Spark master in a supported form. Otherwise raise `ValueError`."""
    if not is_spark_master_url(value):
        raise ValueError(MASTER_FORMS)
    return value


def _parse_duration_setting(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_duration(value, "duration")
    except InvalidInput:
        raise ValueError("a duration such as 90s, 15m, 24h or 3d") from None


def refuse_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a whole number")  # noqa: TRY004 - pydantic reports only a ValueError as a bad value
    return value


def _validate_addresses(value: str) -> str:
    for address in filter(None, value.split(",")):
        match = _ADDRESS_PATTERN.fullmatch(address)
        if not match or int(match["port"]) > 65_535 or not address.isprintable():
            raise ValueError("host:port")
    return value


def _validate_address(value: str) -> str:
    if "," in value:
        raise ValueError(
            "one host:port, of a load balancer or of a name that resolves to all frontends where there are several"
        )
    return _validate_addresses(value)


def _validate_ensemble(value: str) -> str:
    hosts, slash, path = value.partition("/")
    try:
        _validate_addresses(hosts)
    except ValueError:
        hosts = ""
    if value and (not all(hosts.split(",")) or (slash and not _ZOOKEEPER_PATH_PATTERN.fullmatch(slash + path))):
        raise ValueError("host:port, several separated by commas, and then perhaps a path, as in host:2181/sexton")
    return value


def _validate_znode_path(value: str) -> str:
    if not _ZOOKEEPER_PATH_PATTERN.fullmatch(value):
        raise ValueError("a path of ZooKeeper, as /ledgers")
    return value


def _validate_scheme_and_credential(value: SecretStr) -> SecretStr:
    if value.get_secret_value() and not _IDENTITY_PATTERN.fullmatch(value.get_secret_value()):
        raise ValueError("scheme:credential, as in digest:user:password or sasl:user:password")
    return value


OFF: Final = "off"
"""Address that turns a server off. An empty variable does not turn it off, because empty variables count as absent."""


def _validate_listen_address(value: str) -> str:
    if value in {"", OFF}:
        return OFF
    if "," in value:
        raise ValueError("host:port, or off")
    return _validate_addresses(value)


def _validate_web_address(value: str) -> str:
    parts = urlsplit(value)
    if value and not (parts.scheme in {"http", "https"} and parts.netloc and value.isprintable()):
        raise ValueError("an address that begins with http:// or https://")
    return value


def _make_list_validator(validate_item: Callable[[str], str]) -> Callable[[str], str]:
    """Return a validator of items that commas separate. It removes spaces and repeated items."""

    def validate(value: str) -> str:
        return ",".join(map(validate_item, dict.fromkeys(value.replace(" ", "").split(",")))) if value else ""

    return validate


def _validate_function_list(value: str) -> str:
    references = list(dict.fromkeys(value.replace(" ", "").split(","))) if value else []
    matches = [_FUNCTION_PATTERN.fullmatch(reference) for reference in references]
    if len({match["name"] for match in matches if match}) < len(references):
        raise ValueError("module:function, several separated by commas, each function's name once")
    return ",".join(references)


def _validate_absolute_path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or len(value) > _MAX_PATH_CHARS:
        raise ValueError("an absolute path")
    return value


def to_upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


Seconds = Annotated[
    int,
    BeforeValidator(_parse_duration_setting),
    BeforeValidator(refuse_boolean),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    Field(le=MAX_DURATION_S),
]
Interval = Annotated[Seconds, INTERVAL_S]  # time between runs of a recurring job; 0 turns the job off
Count = Annotated[int, BeforeValidator(refuse_boolean), POSITIVE]
Port = Annotated[int, BeforeValidator(refuse_boolean), Field(ge=0, le=65_535)]  # 0: any free port
Address = Annotated[str, AfterValidator(_validate_address)]
Ensemble = Annotated[str, AfterValidator(_validate_ensemble)]
SchemeAndCredential = Annotated[SecretStr, AfterValidator(_validate_scheme_and_credential)]
ListenAddress = Annotated[str, AfterValidator(_validate_listen_address)]  # port 0: any free port
WebAddress = Annotated[str, AfterValidator(_validate_web_address)]
Bucket = Annotated[str, AfterValidator(validate_bucket_name)]
BucketList = Annotated[str, AfterValidator(_make_list_validator(validate_bucket_name))]  # separated by commas
PulsarClusterList = Annotated[
    str, AfterValidator(_make_list_validator(_validate_pulsar_cluster_name))
]  # separated by commas
FunctionList = Annotated[str, AfterValidator(_validate_function_list)]  # separated by commas
Word = Annotated[str, AfterValidator(validate_word)]
ZnodePath = Annotated[str, AfterValidator(_validate_znode_path)]
ZnodePathList = Annotated[str, AfterValidator(_make_list_validator(_validate_znode_path))]  # separated by commas
ServerName = Annotated[str, AfterValidator(_validate_server_name)]
DeploymentName = Annotated[str, AfterValidator(_validate_deployment_name)]
BuildId = Annotated[str, AfterValidator(_validate_build_id)]
Folder = Annotated[str, AfterValidator(_validate_absolute_path)]
File = Annotated[str, AfterValidator(_validate_absolute_path)]
SparkMaster = Annotated[str, AfterValidator(validate_spark_master)]
