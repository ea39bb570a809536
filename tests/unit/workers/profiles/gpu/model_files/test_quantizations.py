from __future__ import annotations

import pytest

from gridq.errors import ModelNotFound
from workers.profiles.gpu.model_files.quantizations import choose_variant

REPO = "org/M-GGUF"


def choose(names: list[str], choice: str | None = None) -> tuple[str, tuple[str, ...], str]:
    variant, note = choose_variant(names, choice, REPO)
    return variant.label, variant.paths, note


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["Q8_0", "Q4_K_M", "Q2_K"], "Q4_K_M"),
        (["Q8_0", "Q4_K_S", "Q5_K_M"], "Q4_K_S"),
        (["F16", "Q5_K_M", "Q3_K_M"], "Q5_K_M"),
        (["F16", "Q8_0"], "Q8_0"),
        (["BF16", "MXFP4"], "MXFP4"),
        (["UD-Q4_K_XL", "Q4_0", "IQ4_XS"], "UD-Q4_K_XL"),
    ],
)
def test_the_default_is_q4_k_m_or_the_nearest_and_it_says_which(labels: list[str], expected: str) -> None:
    label, _, note = choose([f"M-{each}.gguf" for each in labels])
    assert label == expected
    assert (expected in note) == (expected != "Q4_K_M")


def test_a_named_quantization_is_that_one_in_any_case_and_in_a_folder() -> None:
    names = ["Q8_0/M-Q8_0-00001-of-00002.gguf", "Q8_0/M-Q8_0-00002-of-00002.gguf", "M.Q4_K_M.gguf"]
    label, paths, note = choose(names, "q8_0")
    assert (label, paths, note) == ("Q8_0", tuple(names[:2]), "")
    assert choose(names, "M.Q4_K_M.gguf")[1] == ("M.Q4_K_M.gguf",)


def test_what_is_no_model_is_not_chosen() -> None:
    names = ["mmproj-M-Q4_K_M.gguf", "M.imatrix.gguf", "README.md", "model.safetensors", "M-Q8_0.gguf"]
    assert choose(names)[1] == ("M-Q8_0.gguf",)


def test_a_file_without_a_quantization_goes_by_its_name() -> None:
    assert choose(["sub/tiny.gguf"])[:2] == ("tiny", ("sub/tiny.gguf",))


@pytest.mark.parametrize(
    ("names", "choice"),
    [
        (["README.md"], None),
        (["M-Q8_0.gguf"], "Q4_K_M"),
        (["M-Q8_0-00001-of-00003.gguf", "M-Q8_0-00003-of-00003.gguf"], None),
    ],
)
def test_what_is_not_there_is_an_error_that_says_what_is(names: list[str], choice: str | None) -> None:
    with pytest.raises(ModelNotFound) as caught:
        choose(names, choice)
    assert caught.value.code == "model.not_found"
    assert caught.value.fix
    if choice:
        assert caught.value.expected == "one of Q8_0"
        assert caught.value.fix == f"use hf:{REPO}:Q8_0"
