"""Data URLs are parsed, and their types are the registered ones."""

from __future__ import annotations

import pytest

from gridq.errors import StageError
from workers.model_apis.data_urls import DataUrl, parse_data_url


@pytest.mark.parametrize(
    ("url", "media_type", "data"),
    [
        ("data:image/png;base64,QUJD", "image/png", "QUJD"),
        ("data:image/jpg;base64,QUJD", "image/jpeg", "QUJD"),
        ("DATA:Image/PNG;Base64,QUJD", "image/png", "QUJD"),
        ("data:image/png;charset=utf-8;base64,QUJD", "image/png", "QUJD"),
        ("data:image/png;base64,QU\nJD", "image/png", "QUJD"),
        ("data:image/png;base64,QUI", "image/png", "QUI="),
        ("data:image/png;base64,-_-_", "image/png", "+/+/"),
        ("data:image/png;base64,QUI%3D", "image/png", "QUI="),
        ("data:,a%20b", "text/plain", "YSBi"),
        ("data:image/svg+xml,%3Csvg/%3E", "image/svg+xml", "PHN2Zy8+"),
    ],
)
def test_what_a_data_url_contains(url: str, media_type: str, data: str):
    assert parse_data_url(url, "x") == DataUrl(media_type, data)


@pytest.mark.parametrize(
    "url", ["data:x", "data:image/png;base64", "data:image/png;base64,a!b", "data:a;base64,A"]
)
def test_other_urls_are_refused_by_name(url: str):
    with pytest.raises(StageError) as caught:
        parse_data_url(url, "messages[0]")
    assert caught.value.details["param"] == "messages[0]"
