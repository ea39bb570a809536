"""Keys and accounts in the words of a vendor."""

from __future__ import annotations

import base64
from urllib.parse import quote

import pytest

from gridq.protocol.masking import MAX_CHARACTERS, mask_account, mask_credentials

KEY = "Zx9-aQw3/eR7+tY5uI1"


@pytest.mark.parametrize(
    "spelling",
    [
        KEY,
        KEY.upper(),
        KEY[:9] + "\n  " + KEY[9:],
        KEY[:10],
        KEY[-10:],
        quote(KEY, safe=""),
        KEY.encode().hex(),
        *(base64.b64encode(before + KEY.encode()).decode() for before in (b"", b"u:", b"user:", b"name:")),
        base64.urlsafe_b64encode(b"u:" + KEY.encode()).decode(),
    ],
)
def test_an_owners_key_is_masked_in_every_spelling(spelling: str) -> None:
    masked = mask_account(f"The key {spelling} is wrong", [KEY])
    assert masked.startswith("The key ")
    assert masked.endswith(" is wrong")
    # 7 characters of a known key are the most that may stay, beside base64's own ends
    assert len(masked) <= len("The key  is wrong") + len("***") + 7


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("provided: sk-proj-ABCD...5678. See https://x.y/z", "provided: ***. See https://x.y/z"),
        ("provided: sk-proj-********************5678.", "provided: ***."),
        ("the key ***5678 is wrong", "the key *** is wrong"),
        ("the key xa***yz is wrong", "the key *** is wrong"),
        ("the key abcd•••• is wrong", "the key *** is wrong"),
        ("the key ending in 5678", "the key ending in ***"),
        ("an API key that starts with sk-a is wrong", "an API key that starts with *** is wrong"),
        ("the key sk-…5678 is wrong", "the key *** is wrong"),
        ("id org-AbCdEfGhIjKlMnOpQrStUvWx", "id ***"),
        ("project acme-1 is closed", "project *** is closed"),
        ("in organization org-a1B2c3D4 on requests", "in organization *** on requests"),
        ("Organization 'Acme Corp' is disabled", "Organization *** is disabled"),
        ("Project number 12345 is closed", "Project number *** is closed"),
        ("at projects/acme-prod-1", "at projects/***"),
        ("ask ada.lovelace+ai@corp.example.com", "ask ***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2ln expired", "*** expired"),
    ],
)
def test_accounts_and_shortened_keys_are_masked(text: str, masked: str) -> None:
    assert mask_account(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "This organization has been disabled.",
        "Your account is not active, please check your billing details",
        "Unknown parameter: 'user_location'",
        "messages.0.content is too long... shorten it",
        "The model `gpt-5-2025-08-07` does not exist or you do not have access to it.",
        "'required' must include 'key_findings' and 'key_takeaways'",
        "key_model_access_denied",
        "hf_inference_error",
        "models starting with gpt-5",
        "it starts with 'call_' and ends in the middle",
        "Basic authentication is off",
        "project 60 requests a minute",
        "wait…please",
        "The model xai-grok-4-fast-reasoning does not exist",
        "team/llama-3.1-8b",
        "Unknown parameter: 'user-agent-2x'",
        "workspaces: 3.5 allowed",
        "the key 'messages' of a token starts with the name",
        "**Note**: max_tokens must be at most 8192, not 100000",
        "Rate limit reached for requests per min (RPM): Limit 3, Used 3. Please try again in 20s.",
    ],
)
def test_other_words_stay(text: str) -> None:
    assert mask_account(text, [KEY]) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("p@ss wörd €uro 12345", "it is p@ss wörd €uro 12345!"),
        ("f3a9c2d4e5b6beef", "it is f3a9...beef!"),
        ("f3a9c2d4e5b6beef", "it is f3a9…beef!"),
    ],
)
def test_an_odd_key_is_masked(key: str, text: str) -> None:
    assert mask_account(text, [key]) == "it is ***!"


@pytest.mark.parametrize(
    "unit", ["*", ".", "…", "•", "a.", "a", "key-", "sk-", "a@", "a*", " ", "http://", "team "]
)
def test_masking_takes_linear_time(unit: str) -> None:
    """Other patterns would need hours, and the time limit of tests would end them."""
    mask_account("account id" + unit * MAX_CHARACTERS, [KEY])


def test_masking_twice_changes_nothing() -> None:
    once = mask_account(f"sk-abc...123 {KEY} org-a1B2c3D4 ada@example.com", [KEY])
    assert mask_account(once, [KEY]) == once


def test_a_long_text_is_cut_before_a_key_could_escape() -> None:
    text = "é" * (MAX_CHARACTERS - 5) + KEY
    assert mask_account(text, [KEY])[MAX_CHARACTERS - 5 :] in KEY[:5]


def test_credentials_are_found_by_shape() -> None:
    text = "redis://:pw@h Bearer abcdefgh12 sk-ant-api03-abcdefgh AIzaSyA1234567890abcdefg"
    assert mask_credentials(text) == "redis://***@h Bearer *** *** ***"
