"""Parse data URLs (RFC 2397), in which clients send pictures, documents and audio."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from gridq.protocol.models import Json
from workers.model_apis.api_request import make_field_error

SYNONYMS = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
DEFAULT_TYPE = "text/plain"
PDF = "application/pdf"
PICTURES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""The pictures that OpenAI's API and Anthropic's take."""


@dataclass(frozen=True)
class DataUrl:
    """What a data URL contains: a media type in lower case, without parameters, and the data in base64."""

    media_type: str
    data: str

    def decode_text(self) -> str:
        return base64.b64decode(self.data).decode("utf-8", "replace")

    def __str__(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


def is_data_url(url: str) -> bool:
    return url[:5].lower() == "data:"


def normalize_type(media_type: str) -> str:
    """Return a media type in lower case, by its registered name and without parameters."""
    name = media_type.partition(";")[0].strip().lower()
    return SYNONYMS.get(name, name)


def parse_data_url(url: str, place: str) -> DataUrl:
    """Return the content of a data URL. Raises StageError naming `place` if it is not valid."""
    head, comma, data = url.partition(",")
    media_type, *parameters = head[5:].split(";")
    if not is_data_url(url) or not comma:
        raise make_field_error(place, "a URL, or data:<type>;base64,<data>")
    if any(each.strip().lower() == "base64" for each in parameters):
        data = re.sub(r"\s+", "", data if "%" not in data else unquote_to_bytes(data).decode("latin-1"))
        data = data.replace("-", "+").replace("_", "/").rstrip("=")
        data += "=" * (-len(data) % 4)
        try:
            binascii.a2b_base64(data, strict_mode=True)
        except (binascii.Error, ValueError):
            raise make_field_error(place, "base64 after the comma") from None
    else:
        data = base64.b64encode(unquote_to_bytes(data)).decode("ascii")
    return DataUrl(normalize_type(media_type) or DEFAULT_TYPE, data)


def parse_file_data(data: str, filename: Json, place: str) -> DataUrl:
    """Return the content of a file, a data URL or bare base64, whose type then follows from its name.

    Raises StageError naming `place` if it is neither.
    """
    if is_data_url(data):
        return parse_data_url(data, place)
    guessed = mimetypes.guess_type(filename)[0] if isinstance(filename, str) else None
    return parse_data_url(f"data:{guessed or PDF};base64,{data}", place)


def check_picture(url: str, place: str, where: str, types: frozenset[str] = PICTURES) -> str:
    """Return the URL of a picture with the registered name of its type, if it is a data URL.

    Raises StageError naming `place` if its type is none of `types`, and saying `where` that is so.
    """
    if not is_data_url(url):
        return url
    parsed = parse_data_url(url, place)
    if parsed.media_type not in types:
        raise make_field_error(place, f"{', '.join(sorted(types))} {where}")
    return str(parsed)
