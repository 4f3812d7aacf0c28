"""What lets a person read encrypted jobs in Temporal's Web UI: their browser asks this worker to decrypt.

`POST /codec/decode` takes and answers payloads as Temporal's Web UI and command send them. It is off unless
`codec_origin` names the Web UI, serves loopback addresses alone, and answers no page of another origin: a process that
can ask it can read. It encrypts nothing, so nobody can start jobs through it.

Source: Temporal, "Codec Server"; WHATWG Fetch, "CORS protocol".
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from google.protobuf import json_format
from temporalio.api.common.v1 import Payloads

from infra.telemetry.endpoints import resolved
from logstore.errors import InvalidInput
from workers.client.payload_codec import EncryptingCodec
from workers.hosting.http import Page, Pages
from workers.settings import OFF, Settings

_SETTING: Final = "codec_origin"
_PATH: Final = "/codec/decode"
_ASKED: Final = "content-type, x-namespace, authorization"
_KEPT_S: Final = "600"


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
    return address != OFF and ipaddress.ip_address(resolved("http_address", address)[0]).is_loopback


def _page(codec: EncryptingCodec, origin: str) -> Page:
    async def page(request: web.Request) -> web.StreamResponse:
        asks = request.headers.get("Origin")
        if asks not in {None, origin}:
            raise web.HTTPForbidden(text="this origin may not ask: see the setting codec_origin\n")
        headers = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if request.method == "OPTIONS":
            allowed = {"Methods": "POST", "Headers": _ASKED}
            headers |= {f"Access-Control-Allow-{name}": value for name, value in allowed.items()}
            return web.Response(status=204, headers=headers | {"Access-Control-Max-Age": _KEPT_S})
        try:
            asked = json_format.Parse(await request.read(), Payloads())
            decoded = Payloads(payloads=await codec.decode(asked.payloads))
        except (json_format.ParseError, InvalidInput) as error:
            raise web.HTTPBadRequest(text=f"{error}\n", headers=headers) from None
        except (ValueError, RecursionError):
            raise web.HTTPBadRequest(text="no payloads as JSON in UTF-8\n", headers=headers) from None
        return web.json_response(text=json_format.MessageToJson(decoded), headers=headers)

    return page
