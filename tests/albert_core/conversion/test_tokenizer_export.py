from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from albert_core.conversion.huggingface import fast_tokenizer, tokenizer_files
from albert_core.stage.errors import VocabularyError
from albert_core.text.records import CLS, MASK, SEP, SPECIAL_PIECES
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

VOCABULARIES = [
    tiny_vocab(),
    tiny_vocab(lower_case=False),
    tiny_vocab(keep_accents=True),
    tiny_vocab(lower_case=False, keep_accents=True),
]
FAST = [fast_tokenizer(tokenizer) for tokenizer in VOCABULARIES]
TEXTS = [
    "",
    " ",
    "  bado   kelu\tdo \n",
    "mabe (kelo) - do. £1,234 \N{EN DASH} “quotes” ``x''",
    "\N{FULLWIDTH LATIN SMALL LETTER D}o \N{LATIN SMALL LIGATURE FI} ½ x²",
    "\N{ACUTE ACCENT}accent café İstanbul",
    "ΟΔΟΣ ΣΑΣ Σ aΣ.b",
    "bádo be\u0302lu か\u3099 が किं ไม่ عَ a\u0327\u0301 a\u0301\u0327",
    "각 한글 कि \u200b \ufeff z",
    "\N{COMBINING ACUTE ACCENT}abe \x01\x02 \x1cdo\x85be\xa0",
    "\x01be",
    "▁be▁",
    "＜unk＞ ＜pad＞ [cls] ［ＭＡＳＫ］",
]


def split_score(tokenizer: Tokenizer, ids: list[int]) -> float:
    return sum(tokenizer.processor.get_score(i) for i in ids)


def assert_same_pieces(tokenizer: Tokenizer, text: str, found: list[int]) -> None:
    [expected] = tokenizer.encode([text])
    if found != expected:  # of two splits with the same score either is right
        scores = [split_score(tokenizer, ids) for ids in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3), (text, found, expected)
        assert tokenizer.decode(found) == tokenizer.decode(expected)


@pytest.mark.parametrize(
    "tokenizer", VOCABULARIES, ids=["lower", "cased", "lower, accents", "cased, accents"]
)
@pytest.mark.parametrize("text", TEXTS)
def test_strange_texts_have_the_same_pieces(tokenizer: Tokenizer, text: str) -> None:
    found = fast_tokenizer(tokenizer).encode(text, add_special_tokens=False).ids
    assert found == tokenizer.encode([text])[0]


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=40), st.sampled_from(range(len(VOCABULARIES))))
@example("00000", 0)
def test_any_other_text_has_the_same_pieces(text: str, which: int) -> None:
    assume(not any(piece in text for piece in SPECIAL_PIECES))  # written out, they are special
    tokenizer, fast = VOCABULARIES[which], FAST[which]
    assert_same_pieces(tokenizer, text, fast.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def auto_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    for name, content in tokenizer_files(tiny_vocab(), 64).items():
        (folder / name).write_bytes(content)
    return AutoTokenizer.from_pretrained(folder)


def test_auto_tokenizer_puts_special_pieces_round_one_text_and_two(auto_tokenizer: Any) -> None:
    texts = tiny_sentences(50, seed=7)
    ids = tiny_vocab().encode(texts)
    assert auto_tokenizer(texts)["input_ids"] == [[CLS, *a, SEP] for a in ids]
    pair = auto_tokenizer(texts[0], texts[1])
    a, b = ids[:2]
    assert pair["input_ids"] == [CLS, *a, SEP, *b, SEP]
    assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert auto_tokenizer.model_max_length == 64
    assert auto_tokenizer.decode(ids[0]) == tiny_vocab().decode(ids[0])


def test_a_written_mask_is_the_mask_and_its_surroundings_are_split_as_in_training(
    auto_tokenizer: Any,
) -> None:
    [whole] = tiny_vocab().encode(["bado be kelu."])
    ids = auto_tokenizer("bado [MASK] kelu.", add_special_tokens=False)["input_ids"]
    [before], [after] = tiny_vocab().encode(["bado"]), tiny_vocab().encode(["kelu."])
    assert whole[: len(before)] == before
    assert ids == [*before, MASK, *after]
    at_the_end = auto_tokenizer("bado [MASK].", add_special_tokens=False)["input_ids"]
    assert at_the_end == [*before, MASK, tiny_vocab().pieces.index(".")]


def test_a_vocabulary_of_another_kind_is_refused() -> None:
    with pytest.raises(VocabularyError, match="model_type 2, expected 1"):
        fast_tokenizer(tiny_vocab(model_type="bpe"))
