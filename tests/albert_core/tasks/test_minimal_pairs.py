import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AlbertConfig, AlbertForMaskedLM

from albert_core.conversion.huggingface import hf_config, to_hf_state
from albert_core.model.albert import AlbertForPretraining, AlbertModel
from albert_core.model.one_position import encode_at
from albert_core.stage.errors import TaskError
from albert_core.tasks import minimal_pairs
from albert_core.tasks.minimal_pairs import MinimalPairs, is_right, log_likelihoods, read_pairs
from albert_core.tasks.pair_sets import find_pairs
from albert_core.text.records import CLS, MASK, SEP
from albert_core.text.tokenizer import Tokenizer
from tests.albert_core.tasks.task_files import DATA, write
from tests.albert_core.tiny_model import random_model
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab

CPU = torch.device("cpu")
SENTENCES = tiny_sentences(6)
BLIMP_ROW = {
    "sentence_good": "A cat sat.",
    "sentence_bad": "A cat sit.",
    "UID": "past",
    "linguistics_term": "verbs",
}
WORDS = "ba pinu."
MASKED = [
    ("[CLS] [MASK] [MASK] ▁ p i n u . [SEP]", 1),
    ("[CLS] ▁ [MASK] ▁ p i n u . [SEP]", 2),
    ("[CLS] ▁ ba [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [SEP]", 3),
    ("[CLS] ▁ ba ▁ [MASK] [MASK] [MASK] [MASK] [MASK] [SEP]", 4),
    ("[CLS] ▁ ba ▁ p [MASK] [MASK] [MASK] [MASK] [SEP]", 5),
    ("[CLS] ▁ ba ▁ p i [MASK] [MASK] [MASK] [SEP]", 6),
    ("[CLS] ▁ ba ▁ p i n [MASK] [MASK] [SEP]", 7),
    ("[CLS] ▁ ba ▁ p i n u [MASK] [SEP]", 8),
]
"""The sequences of `WORDS`, and the position that is scored in each."""
SHAPES: dict[str, dict[str, Any]] = {
    "shared": {},
    "four layers, two groups": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "nothing shared": {"sharing": "none"},
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
    theirs = AlbertForMaskedLM(AlbertConfig(**config)).eval()
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


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_a_plain_loop_over_hugging_faces_model(shape: str) -> None:
    tokenizer = tiny_vocab()
    model = model_for(tokenizer, **SHAPES[shape])
    found = log_likelihoods(model, tokenizer, SENTENCES, CPU)
    assert found == pytest.approx(by_plain_loop(model, tokenizer, SENTENCES), rel=0, abs=1e-5)


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_scores_of_200_real_pairs_are_those_of_a_plain_loop_within_1e_5() -> None:
    tokenizer = Tokenizer((DATA.parent / "models/30k-clean.model").read_bytes())
    model = model_for(tokenizer)
    rows = {name: read_pairs(name, uris) for name, uris in find_pairs(str(DATA)).items()}
    sentences = [
        text
        for pairs, step in ((rows["blimp"], 134), (rows["zorro"], 115))
        for text in [*pairs.good[::step], *pairs.bad[::step]]
    ]
    assert len(sentences) == 400
    found = log_likelihoods(model, tokenizer, sentences, CPU)
    assert found == pytest.approx(by_plain_loop(model, tokenizer, sentences), rel=0, abs=1e-5)


def test_a_piece_is_masked_together_with_the_later_pieces_of_its_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, seen = tiny_vocab(), []

    def recorded(encoder: AlbertModel, input_ids: Tensor, positions: Tensor) -> Tensor:
        for row, position in zip(input_ids.tolist(), positions.tolist(), strict=True):
            seen.append((" ".join(tokenizer.pieces[piece] for piece in row), position))
        return encode_at(encoder, input_ids, positions)

    monkeypatch.setattr(minimal_pairs, "encode_at", recorded)
    log_likelihoods(model_for(tokenizer), tokenizer, [WORDS], CPU)
    assert seen == MASKED


@settings(max_examples=5, deadline=None)
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
    pairs = MinimalPairs(
        name="own",
        good=[likely, unlikely, likely],
        bad=[unlikely, likely, likely.upper()],  # the last are the same pieces
        paradigms=["a"] * 3,
        phenomena=["a"] * 3,
    )
    assert is_right(model, tokenizer, pairs, CPU).tolist() == [True, False, False]


def test_a_sentence_that_the_model_has_no_positions_for_is_an_error_that_shows_it() -> None:
    tokenizer = tiny_vocab()
    [ids] = tokenizer.encode([SENTENCES[0]])
    fits = model_for(tokenizer, positions=len(ids) + 2)
    assert log_likelihoods(fits, tokenizer, [SENTENCES[0]], CPU)[0] < 0
    with pytest.raises(TaskError, match=f"{SENTENCES[0][:20]}.*has {len(ids)} pieces, expected"):
        log_likelihoods(model_for(tokenizer, len(ids) + 1), tokenizer, [SENTENCES[0]], CPU)


def test_each_format_is_read_with_its_paradigms_and_phenomena(tmp_path: Path) -> None:
    blimp = write(tmp_path / "past.jsonl", json.dumps(BLIMP_ROW) + "\n")
    zorro = write(tmp_path / "case-a-b.txt", "A cat sit.\nA cat sat.\n")
    own = write(tmp_path / "mine.jsonl", '{"sentence_good": "It is.", "sentence_bad": "Is it."}\n')
    found = {name: read_pairs(name, [uri]) for name, uri in
             (("blimp", blimp), ("zorro", zorro), ("mine", own))}  # fmt: skip
    read = {name: (p.good, p.bad, p.paradigms, p.phenomena) for name, p in found.items()}
    assert read == {
        "blimp": (["A cat sat."], ["A cat sit."], ["past"], ["verbs"]),
        "zorro": (["A cat sat."], ["A cat sit."], ["case-a-b"], ["case"]),
        "mine": (["It is."], ["Is it."], ["mine"], ["mine"]),
    }


MALFORMED = {
    "a.jsonl": [
        ('{"sentence_good": "A."}', "line 1: 'sentence_bad' is missing"),
        ('{"sentence_good": 3, "sentence_bad": "A."}', "line 1: 'sentence_good' is 3"),
        ('{"sentence_good": "A.", "sentence_bad": "B.", "UID": ""}', "line 1: 'UID' is ''"),
        (json.dumps(BLIMP_ROW) + '\n{"sentence', "line 2: not JSON"),
        ('{"sentence_good": "A.", "sentence_bad": "A."}', "line 1: both sentences are 'A.'"),
        ("", "has no pairs"),
    ],
    "a.txt": [
        ("A.\nB.\nC.\n", "line 3: the last of an odd number of lines"),
        ("A.\n\nB.\nC.\n", "line 2: no text"),
        ("A.\nB.\nC.\nC.\n", "line 3: both sentences are 'C.'"),
        ("", "has no pairs"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [(name, *case) for name, cases in MALFORMED.items() for case in cases],
)
def test_a_malformed_file_is_an_error_that_says_where(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    uri = write(tmp_path / name, content)
    with pytest.raises(TaskError, match=said) as raised:
        read_pairs("own", [uri])
    assert uri in str(raised.value)


def test_a_pair_of_a_published_set_may_be_the_same_sentence_twice(tmp_path: Path) -> None:
    # BLiMP's principle_A_case_2 has one, which every model gets wrong.
    uri = write(tmp_path / "same.txt", "A cat sat.\nA cat sat.\n")
    assert len(read_pairs("zorro", [uri])) == 1


@pytest.mark.skipif(not DATA.exists(), reason="the real data isn't here")
def test_blimp_and_zorro_are_read_as_published() -> None:
    found = {name: read_pairs(name, uris) for name, uris in find_pairs(str(DATA)).items()}
    counts = {n: (len(p), len(set(p.paradigms)), len(set(p.phenomena))) for n, p in found.items()}
    assert counts == {"blimp": (13_400, 67, 13), "zorro": (11_500, 23, 13)}
    assert (found["zorro"].bad[0], found["zorro"].good[0]) == (
        "look at this purple things .",
        "look at this purple thing .",
    )
