"""What lets a person read encrypted jobs in Temporal's Web UI: their browser asks this worker to decrypt.

`POST /codec/decode` takes and answers payloads as Temporal's Web UI and command send them. It is off unless
`codec_origin` names the Web UI, serves loopback addresses alone, and answers no page of another origin: a process that
can ask it can read. It encrypts nothing, so nobody can start jobs through it. One request at a time is decrypted, in a
thread: a large one holds up neither probes nor workflows.

Source: Temporal, "Codec Server"; WHATWG Fetch, "CORS protocol".
"""

import asyncio
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from infra.telemetry.endpoints import resolve_address
from logstore.errors import InvalidInput
from workers.client.payload_codec import EncryptingCodec
from workers.hosting.http import Page, Pages
from workers.settings import OFF, Settings

_SETTING: Final = "codec_origin"
_PATH: Final = "/codec/decode"
_ASKED: Final = "content-type, x-namespace, authorization"
_KEPT_S: Final = "600"
_MAX_PAYLOADS: Final = 10_000
_MAX_OPENING_BRACKETS: Final = 2 * _MAX_PAYLOADS + 2  # each payload and its metadata, the document and its list


def add_codec(pages: Pages, codec: EncryptingCodec, settings: Settings) -> None:
    """Show the page, where the settings ask for it.

    Raises:
        InvalidInput: They ask for it at an address that others than this machine can reach, or nothing listens.
    """
    if not settings.codec_origin:
        return
    if not _is_loopback(settings.http_address):
        rule = "none, because http_address is no loopback address"
        raise InvalidInput(_SETTING, expected=rule, found=settings.codec_origin)
    parts = urlsplit(settings.codec_origin)
    pages.add(_PATH, _page(codec, f"{parts.scheme}://{parts.netloc}"), methods=("OPTIONS", "POST"))


def _is_loopback(address: str) -> bool:
    return address != OFF and ipaddress.ip_address(resolve_address("http_address", address)[0]).is_loopback


def _decode(codec: EncryptingCodec, body: bytes) -> str:
    """Decrypt the payloads of a body; blocks.

    Raises:
        InvalidInput: There are too many payloads, or one cannot be read.
        ParseError, ValueError, RecursionError: The body is not a JSON document of payloads.
    """
    if body.count(b"{") + body.count(b"[") > _MAX_OPENING_BRACKETS:  # before a parser makes objects of them
        raise InvalidInput("payloads", expected=f"at most {_MAX_PAYLOADS:,}", found="more")
    decoded = Payloads(payloads=codec.decrypt(json_format.Parse(body, Payloads()).payloads))
    return json_format.MessageToJson(decoded)


def _page(codec: EncryptingCodec, origin: str) -> Page:
    one_at_a_time = asyncio.Lock()

    async def page(request: web.Request) -> web.StreamResponse:
        asks = request.headers.get("Origin")
        if asks not in {None, origin}:
            raise web.HTTPForbidden(text="this origin may not ask: see the setting codec_origin\n")
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if request.method == "OPTIONS":
            allowed = {"Methods": "POST", "Headers": _ASKED}
            headers |= {f"Access-Control-Allow-{name}": value for name, value in allowed.items()}
            return web.Response(status=204, headers=headers | {"Access-Control-Max-Age": _KEPT_S})
        body = await request.read()
        try:
            async with one_at_a_time:
                decoded = await asyncio.to_thread(_decode, codec, body)
        except (json_format.ParseError, InvalidInput) as error:
            raise web.HTTPBadRequest(text=f"{error}\n", headers=headers) from None
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="no payloads as JSON in UTF-8\n", headers=headers) from None
        return web.json_response(text=decoded, headers=headers)

    return page
