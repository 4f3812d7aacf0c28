"""A real store behind which PUTs are answered with 200 and never stored, as by a gateway that loses them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from botocore.awsrequest import AWSResponse

from workers.assembly.log_store import LogStore


@contextmanager
def losing_puts(log: LogStore, suffix: str) -> Iterator[list[str]]:
    """Lose PUTs of keys with this suffix in the primary bucket. Yield the URLs of those that were lost."""
    primary: Any = log.objects
    events = primary._connect().client.meta.events
    headers: Any = {"ETag": '"0"'}
    lost_urls: list[str] = []

    def answer(request: Any, **_: object) -> AWSResponse | None:
        url = request.url.partition("?")[0]
        if not url.endswith(suffix):
            return None
        lost_urls.append(url)
        return AWSResponse(url, 200, headers, SimpleNamespace(stream=lambda: iter(())))

    events.register("before-send.s3.PutObject", answer)
    try:
        yield lost_urls
    finally:
        events.unregister("before-send.s3.PutObject", answer)
