from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AlbertConfig, AlbertForMaskedLM

from albert_core.conversion.huggingface import hf_config, to_hf_state
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.stage.errors import TaskError
from albert_core.tasks import likelihoods, minimal_pairs
from albert_core.tasks.likelihoods import encode_at, is_right, log_likelihoods
from albert_core.text.records import CLS, MASK, SEP
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tiny_model import random_model
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

CPU = torch.device("cpu")
SENTENCES = tiny_sentences(6)
MASKED = {
    "ba pinu.": [
        ("[CLS] [MASK] [MASK] ▁ p i n u . [SEP]", 1),
        ("[CLS] ▁ [MASK] ▁ p i n u . [SEP]", 2),
        ("[CLS] ▁ ba [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [SEP]", 3),
        ("[CLS] ▁ ba ▁ [MASK] [MASK] [MASK] [MASK] [MASK] [SEP]", 4),
        ("[CLS] ▁ ba ▁ p [MASK] [MASK] [MASK] [MASK] [SEP]", 5),
        ("[CLS] ▁ ba ▁ p i [MASK] [MASK] [MASK] [SEP]", 6),
        ("[CLS] ▁ ba ▁ p i n [MASK] [MASK] [SEP]", 7),
        ("[CLS] ▁ ba ▁ p i n u [MASK] [SEP]", 8),
    ],
    "ไม่が.": [
        ("[CLS] [MASK] ไ ม ่ が . [SEP]", 1),
        ("[CLS] ▁ [MASK] ม ่ が . [SEP]", 2),
        ("[CLS] ▁ ไ [MASK] ่ が . [SEP]", 3),
        ("[CLS] ▁ ไ ม [MASK] が . [SEP]", 4),
        ("[CLS] ▁ ไ ม ่ [MASK] [MASK] [SEP]", 5),
        ("[CLS] ▁ ไ ม ่ が [MASK] [SEP]", 6),
    ],
    "dá": [
        ("[CLS] [MASK] [MASK] [MASK] [SEP]", 1),
        ("[CLS] ▁ [MASK] [MASK] [SEP]", 2),
        ("[CLS] ▁ d [MASK] [SEP]", 3),
    ],
}
"""Sentences -> the sequences of each, and the position that is scored in it."""
SHAPES: dict[str, dict[str, Any]] = {
    "four layers, two groups": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "inner blocks, no projection": {"inner_group_num": 2, "embedding_size": 16},
    "one layer": {"num_hidden_layers": 1},
}


def model_for(tokenizer: Tokenizer, positions: int = 128, **shape: Any) -> AlbertForPretraining:
    return random_model(vocab_size=tokenizer.vocab_size, max_position_embeddings=positions, **shape)


def by_plain_loop(
    model: AlbertForPretraining, tokenizer: Tokenizer, sentences: list[str]
) -> list[float]:
    """Score as people do with Hugging Face's class: the copies of one sentence at a time."""
    config = hf_config(model.encoder.settings, tokenizer.vocab_size)
    config = {name: value for name, value in config.items() if name != "albert_core"}
    theirs = AlbertForMaskedLM(AlbertConfig(**config)).eval().to(model.masked_lm.bias.dtype)
    assert not theirs.load_state_dict(to_hf_state(model), strict=False).missing_keys
    scores = []
    for ids in tokenizer.encode(sentences):
        starts = [tokenizer.pieces[piece].startswith("▁") for piece in ids]
        copies = torch.tensor([CLS, *ids, SEP]).repeat(len(ids), 1)
        for place in range(len(ids)):
            for later in range(place, len(ids)):
                if later > place and starts[later]:
                    break
                copies[place, later + 1] = MASK
        places = torch.arange(len(ids))
        with torch.no_grad():
            at_places = theirs.albert(copies).last_hidden_state[places, places + 1]
            log_p = torch.log_softmax(theirs.predictions(at_places).double(), dim=1)
        scores.append(float(log_p[places, torch.tensor(ids)].sum()))
    return scores


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_a_plain_loop_over_hugging_faces_model(
    shape: str, dtype: torch.dtype, error: float
) -> None:
    tokenizer = tiny_vocab()
    model = model_for(tokenizer, **SHAPES[shape]).to(dtype)
    found = log_likelihoods(model, tokenizer, SENTENCES, CPU)
    assert found == pytest.approx(by_plain_loop(model, tokenizer, SENTENCES), rel=0, abs=error)


@pytest.mark.parametrize("sentence", MASKED)
def test_a_piece_is_masked_with_the_later_pieces_of_its_word_which_is_one_piece_without_blanks(
    sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, seen = tiny_vocab(keep_accents=not sentence.isascii()), []

    def recorded(encoder: AlbertModel, input_ids: Tensor, positions: Tensor) -> Tensor:
        for row, position in zip(input_ids.tolist(), positions.tolist(), strict=True):
            seen.append((" ".join(tokenizer.pieces[piece] for piece in row), position))
        return encode_at(encoder, input_ids, positions)

    monkeypatch.setattr(likelihoods, "encode_at", recorded)
    log_likelihoods(model_for(tokenizer), tokenizer, [sentence], CPU)
    assert seen == MASKED[sentence]


@settings(max_examples=5)
@given(order=st.permutations(range(len(SENTENCES))), max_pieces=st.integers(100, 3000))
def test_neither_the_order_of_the_sentences_nor_the_size_of_a_batch_changes_a_score(
    order: list[int], max_pieces: int
) -> None:
    tokenizer = tiny_vocab()
    model = model_for(tokenizer)
    expected = log_likelihoods(model, tokenizer, SENTENCES, CPU)[order]
    sentences = [SENTENCES[number] for number in order]
    found = log_likelihoods(model, tokenizer, [*sentences, sentences[0]], CPU, max_pieces)
    assert found[:-1] == pytest.approx(expected, rel=0, abs=1e-5)
    assert found[-1] == found[0]


def test_a_model_is_right_only_where_the_good_sentence_is_strictly_more_likely() -> None:
    tokenizer = tiny_vocab()
    model = model_for(tokenizer)
    likely, unlikely = sorted(
        SENTENCES[:2], key=lambda text: -log_likelihoods(model, tokenizer, [text], CPU)[0]
    )
    couples = [(likely, unlikely), (unlikely, likely), (likely, likely.upper())]  # the same pieces
    pairs = [minimal_pairs.Pair(*couple, "a", "a") for couple in couples]
    assert is_right(model, tokenizer, pairs, CPU).tolist() == [True, False, False]


def test_a_sentence_that_the_model_has_no_positions_for_is_an_error_that_shows_it() -> None:
    tokenizer = tiny_vocab()
    [ids] = tokenizer.encode([SENTENCES[0]])
    fits = model_for(tokenizer, positions=len(ids) + 2)
    assert log_likelihoods(fits, tokenizer, [SENTENCES[0]], CPU)[0] < 0
    with pytest.raises(TaskError, match=f"{SENTENCES[0][:20]}.*has {len(ids)} pieces, expected"):
        log_likelihoods(model_for(tokenizer, len(ids) + 1), tokenizer, [SENTENCES[0]], CPU)
