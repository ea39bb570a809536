from __future__ import annotations

from pathlib import Path

import pytest

from gridq.errors import ModelReferenceInvalid
from workers.profiles.gpu.model_files.references import (
    CatalogueReference,
    FileReference,
    HubReference,
    UrlReference,
    parse_reference,
)

DIGEST = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:Qwen/Qwen3-8B-GGUF", HubReference("Qwen/Qwen3-8B-GGUF")),
        ("hf:Qwen/Qwen3-8B-GGUF:Q5_K_M", HubReference("Qwen/Qwen3-8B-GGUF", "Q5_K_M")),
        ("hf:o/r@0123abc:Q8_0", HubReference("o/r", "Q8_0", "0123abc")),
        ("hf:o/r@refs/pr/2", HubReference("o/r", None, "refs/pr/2")),
        ("hf:o/r:folder/m-Q4_0.gguf", HubReference("o/r", "folder/m-Q4_0.gguf")),
        ("hf://o/r:Q8_0", HubReference("o/r", "Q8_0")),
        ("file:/models/m.gguf", FileReference(Path("/models/m.gguf"))),
        ("file:///models/m.gguf", FileReference(Path("/models/m.gguf"))),
        ("/models/m.gguf", FileReference(Path("/models/m.gguf"))),
        ("https://h.example/m.gguf", UrlReference("https://h.example/m.gguf")),
        (f"https://h.example/m.gguf#sha256={DIGEST}", UrlReference("https://h.example/m.gguf", DIGEST)),
        ("qwen3-8b", CatalogueReference("qwen3-8b")),
    ],
)
def test_each_kind_of_reference(text: str, expected: object) -> None:
    found = parse_reference(text)
    assert found == expected
    assert parse_reference(str(found)) == found


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("https://huggingface.co/Qwen/Qwen3-8B-GGUF", "write hf:Qwen/Qwen3-8B-GGUF"),
        ("Qwen/Qwen3-8B-GGUF:Q4_0", "write hf:Qwen/Qwen3-8B-GGUF:Q4_0"),
        ("http://h.example/m.gguf", "write https://h.example/m.gguf"),
        ("hf:nope", None),
        ("hf:a/../../etc", None),
        ("hf:o/r:", None),
        ("hf:o/r:../../x.gguf", None),
        ("hf:o/r@../x", None),
        ("file:relative.gguf", "write file:"),
        ("https://user:secret@h.example/m.gguf", None),
        ("https://user:secret@h.example", None),
        ("https://user:secret@[h.example/m.gguf", None),
        ("https://h.example:99999/m.gguf", None),
        ("https://h.example/m.gguf#sha256=short", None),
        ("https://h.example", None),
        ("two words", None),
        ("", None),
    ],
)
def test_a_wrong_reference_is_one_error_with_a_fix(text: str, fix: str | None) -> None:
    with pytest.raises(ModelReferenceInvalid) as caught:
        parse_reference(text, "gpu.models[0].file")
    assert caught.value.code == "model.reference"
    assert caught.value.path == "gpu.models[0].file"
    assert caught.value.expected
    assert caught.value.reason
    assert (caught.value.fix or "").startswith(fix or "")
    assert "secret" not in caught.value.to_json()
