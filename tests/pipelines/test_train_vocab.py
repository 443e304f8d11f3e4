"""The vocabulary: its options and ids, its sample, a given model, its report."""

import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from albert_core.stage.errors import VocabularyError
from albert_core.stage.lineage import read_work
from albert_core.stage.manifest import Manifest, read_manifest
from albert_core.stage.results import VocabularyResult
from albert_core.text.records import DOCUMENT_SCHEMA, MAX_VOCAB_SIZE
from albert_core.text.tokenizer import Tokenizer
from pipelines import train_vocab, vocab_sample
from pipelines.config import VocabularySettings
from pipelines.train_vocab import VocabularyReport, describe_misfit, measure
from pipelines.vocab_sample import Sampling
from tests.albert_core.tiny_vocab import tiny_sentences, tiny_vocab
from tests.made_results import replace_in_manifest
from tests.pipelines.conftest import write_corpus

PUBLISHED = Path("/work/shared/data/models/30k-clean.model")
REFERENCE_PIECES = [
    *["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
    *["(", ")", '"', "-", ".", "\N{EN DASH}", "£", "€"],
]
"""Ids 0 to 12 of the published vocabulary."""
SMALL = VocabularySettings(vocab_size=120, num_threads=1)

SENTENCES = "sampled sentences"


def small(**settings: Any) -> VocabularySettings:
    return SMALL.model_copy(update=settings)


OF_THE_RUN = {1, 2, 4, 11, 16}
"""Fields of the trainer's settings that differ: input, model_prefix, vocab_size,
input_sentence_size (of SentencePiece's own sampling) and num_threads."""
DEFAULTS: dict[int, list[Any]] = {
    6: [0],  # self_test_sample_size
    7: [b""],  # input_format
    14: [1_000_000],  # seed_sentencepiece_size
    15: [int.from_bytes(struct.pack("<f", 0.75), "little")],  # shrinking_factor
    17: [2],  # num_sub_iterations
    19: [1],  # shuffle_input_sentence
    20: [16],  # max_sentencepiece_length
    21: [1],  # split_by_unicode_script
    22: [1],  # split_by_whitespace
    23: [1],  # split_by_number
    24: [0],  # treat_whitespace_as_suffix
    34: [0],  # use_all_vocab
    44: [b" \xe2\x81\x87 "],  # unk_surface
    45: [b"<unk>"],
    46: [b"<s>"],
    47: [b"</s>"],
    48: [b"<pad>"],
}
"""The trainer's settings that SentencePiece 0.2.3 does not write, as it logs them."""

needs_published = pytest.mark.skipif(
    not PUBLISHED.exists(), reason="the published vocabulary is not here"
)


Texts = dict[str, str]
"""id -> text, one sentence a line."""


def made_up(num_documents: int) -> Texts:
    sentences = tiny_sentences(num_documents * 10)
    return {f"d{i}": "\n".join(sentences[i * 10 : i * 10 + 10]) for i in range(num_documents)}


def corpus_of(texts: Texts, work: Path, num_shards: int = 2) -> str:
    rows = [{"id": name, "text": text, "source": "s"} for name, text in texts.items()]
    dealt = (rows[number::num_shards] for number in range(num_shards))
    return write_corpus(work, *(pa.Table.from_pylist(each, DOCUMENT_SCHEMA) for each in dealt))


def made_of(
    texts: Texts, work: Path, settings: VocabularySettings = SMALL, num_shards: int = 2
) -> tuple[Manifest, Path]:
    """Return the manifest of the vocabulary and its folder."""
    uri = train_vocab.run(settings, corpus_of(texts, work, num_shards), str(work))
    return read_manifest(uri), Path(uri).parent


def result_of(texts: Texts, work: Path, settings: VocabularySettings = SMALL) -> VocabularyResult:
    return made_of(texts, work, settings)[0].result_as(VocabularyResult)


def model_of(texts: Texts, work: Path, settings: VocabularySettings, num_shards: int = 2) -> bytes:
    _, folder = made_of(texts, work, settings, num_shards)
    return (folder / "spiece.model").read_bytes()


def sampling_of(sample_mb: float, text_bytes: int) -> Sampling:
    settings = small(sample_mb=sample_mb)
    return Sampling(settings, text_bytes, scratch="", sizes={"/LATIN": text_bytes})


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the field numbers and raw values of a protobuf message.

    SentencePiece's own classes for its models can't be imported beside Beam's protobuf.
    """
    for field in UnknownFieldSet(Empty.FromString(message)):
        yield field.field_number, field.data


def spec(model: bytes, field: int) -> dict[int, list[Any]]:
    """Return the settings that a model was trained (2) or normalises (3) with, by field number."""
    message = next(value for number, value in fields_of(model) if number == field)
    values: dict[int, list[Any]] = {}
    for number, value in fields_of(message):
        values.setdefault(number, []).append(value)
    return values


def types_of(model: bytes) -> list[int]:
    """Return the type of each piece: 1 normal, 2 unknown, 3 control, 4 user-defined."""
    pieces = [dict(fields_of(value)) for number, value in fields_of(model) if number == 1]
    return [int(piece.get(3, 1)) for piece in pieces]


def test_the_first_ids_are_the_references_and_user_symbols_stand_alone(tmp_path: Path) -> None:
    texts = {i: text + '\nba(ba)ba "ba" ba-ba.\nba–ba £ba €ba' for i, text in made_up(40).items()}
    model = model_of(texts, tmp_path, SMALL)
    tokenizer = Tokenizer(model)
    assert tokenizer.pieces[:13] == REFERENCE_PIECES
    assert types_of(model)[:14] == [3, 2, 3, 3, 3, *[4] * 8, 1]
    for number, symbol in enumerate(REFERENCE_PIECES[5:], start=5):
        assert [piece for piece in tokenizer.pieces if symbol in piece] == [symbol]
        assert number in tokenizer.encode([f"ba{symbol}ba"])[0]


@needs_published
def test_the_trainer_has_the_options_of_the_published_vocabulary(tmp_path: Path) -> None:
    published = PUBLISHED.read_bytes()
    ours = model_of(made_up(40), tmp_path, SMALL)
    theirs = {n: v for n, v in spec(published, 2).items() if n not in OF_THE_RUN}
    set_by_us = {n: v for n, v in spec(ours, 2).items() if n not in OF_THE_RUN}
    assert DEFAULTS | set_by_us == theirs
    assert spec(ours, 3)[1] == spec(published, 3)[1] == [b"nmt_nfkc"]
    assert types_of(ours)[:14] == types_of(published)[:14]


@needs_published
def test_the_list_of_pieces_is_written_as_the_trainer_writes_it() -> None:
    written = train_vocab.vocab_file(Tokenizer(PUBLISHED.read_bytes()))
    assert len(written) == 548_994  # of the published 30k-clean.vocab
    assert written.startswith(b"<pad>\t0\n<unk>\t0\n[CLS]\t0\n")


def test_text_is_lower_cased_and_stripped_of_accents_before_training(tmp_path: Path) -> None:
    texts = {i: text.upper().replace("A", "Á") for i, text in made_up(40).items()}
    lower = Tokenizer(model_of(texts, tmp_path, SMALL))
    assert "▁" in lower.pieces
    assert all(piece == piece.lower() and "á" not in piece for piece in lower.pieces[5:])
    cased = Tokenizer(model_of(texts, tmp_path, small(lower_case=False)))
    assert any(piece != piece.lower() for piece in cased.pieces[5:])


def test_marks_stay_if_they_are_to_and_a_warning_says_that_a_text_needs_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {i: text.replace("a", "が").replace("o", "ó") for i, text in made_up(40).items()}
    without = Tokenizer(model_of(texts, tmp_path, SMALL))
    assert not any("が" in piece or "ó" in piece for piece in without.pieces)
    assert re.search(r"[\d.]+ % of the text's characters are marks .*keep_accents", caplog.text)
    caplog.clear()
    kept = Tokenizer(model_of(texts, tmp_path, small(keep_accents=True)))
    assert any("が" in piece for piece in kept.pieces)
    assert any("ó" in piece for piece in kept.pieces)
    assert "marks" not in caplog.text


def test_the_share_sampled_is_the_largest_power_of_two_that_fits() -> None:
    for sample_mb, share in ((100, 1), (99.9, 0.5), (50, 0.5), (49, 0.25), (0.1, 2**-10)):
        assert vocab_sample.sample_share(sample_mb, 100_000_000) == share
    for train_mb, train in ((100, 1), (32, 1 / 2), (60, 1 / 2)):
        sampling = sampling_of(train_mb, 64_000_000)
        assert (sampling.train_share, sampling.measured_share) == (train, 1 / 16)
    assert replace(sampling, train=False).train_share == 0
    assert sampling_of(2, 4_000_000).measured_share == 1 / 8


def test_a_small_stratum_gives_more_of_its_sentences() -> None:
    sizes = {"en": 64e6, "ko": 4e6, "ar": 1e6, "el": 1e3}
    shares = {
        1: {"en": 1 / 8, "ko": 1 / 8, "ar": 1 / 8, "el": 1 / 8},
        2: {"en": 1 / 16, "ko": 1 / 4, "ar": 1 / 2, "el": 1},
        100: {"en": 1 / 16, "ko": 1 / 2, "ar": 1, "el": 1},
    }
    for temperature, expected in shares.items():
        found = vocab_sample.stratum_shares(sizes, 9e6, temperature)
        assert found == expected
        assert sum(sizes[stratum] * share for stratum, share in found.items()) <= 9e6


@pytest.mark.parametrize(
    ("document_id", "text", "stratum"),
    [
        ("wiki/AA/01#7", "Берлин — the capital", "wiki/LATIN"),
        ("01.txt#a/b", "Берлин — столица", "/CYRILLIC"),
        ("x/1", "123", "x/LATIN"),
        ("x/1", "서울은 大韓民國의 수도", "x/HANGUL"),
    ],
)
def test_a_stratum_is_a_folder_and_a_script(document_id: str, text: str, stratum: str) -> None:
    assert vocab_sample.stratum_of(document_id, text) == stratum


def test_a_few_documents_in_another_script_are_known(tmp_path: Path) -> None:
    """Of forty documents one is in Greek letters; an eighth of the text is sampled."""
    greek = "\n".join(chr(0x3B1 + number) * 3 for number in range(24) if number != 17)
    texts = {**made_up(80), "greek": greek}
    settings = small(sample_mb=0.008, character_coverage=1.0)
    tokenizer = Tokenizer(model_of(texts, tmp_path, settings))
    assert set(greek) - {"\n"} <= set("".join(tokenizer.pieces))


def test_a_long_document_does_not_fill_the_sample(tmp_path: Path) -> None:
    sentences = "\n".join(tiny_sentences(400))
    manifest, _ = made_of({**made_up(40), "long": sentences}, tmp_path, small(sample_mb=0.02))
    assert manifest.account("documents").kept > 30
    drawn = manifest.account(SENTENCES)
    assert 100 < drawn.dropped["not_sampled"] < drawn.total


def test_a_smaller_sample_is_a_part_of_a_larger_one() -> None:
    samplings = [sampling_of(megabytes, 40_000_000) for megabytes in (40, 20, 10)]
    for number in range(1000):
        places = [sampling.position_of(f"d{number}") for sampling in samplings]
        shares = [s.share_trained(p, "/LATIN") for s, p in zip(samplings, places, strict=True)]
        assert shares == sorted(shares, reverse=True)
        assert shares[0] == 1
        assert not (shares[1] and samplings[1].is_measured(places[1]))


def test_the_number_of_shards_does_not_change_the_vocabulary(tmp_path: Path) -> None:
    texts = made_up(60)
    settings = small(sample_mb=0.02)
    one = model_of(texts, tmp_path / "one", settings, num_shards=1)
    assert model_of(texts, tmp_path / "five", settings, num_shards=5) == one


def test_a_document_outside_the_sample_does_not_change_the_vocabulary(tmp_path: Path) -> None:
    settings = small(sample_mb=0.02, refresh="train")
    before, folder = made_of(made_up(60), tmp_path, settings)
    models = set()
    for name in ("new-1", "new-2", "new-3", "new-4"):
        after, other = made_of({**made_up(60), name: "ba bo bu be bi"}, tmp_path, settings)
        assert after.result_as(VocabularyResult).sample_share == 0.5
        if after.account(SENTENCES).kept == before.account(SENTENCES).kept:
            models.add((other / "spiece.model").read_bytes())
    assert models == {(folder / "spiece.model").read_bytes()}


def test_every_document_and_sentence_is_accounted_for(tmp_path: Path) -> None:
    texts = {
        **made_up(40),
        "long": "ba " * 1500,
        "reserved": "ba \N{LOWER FIVE EIGHTHS BLOCK} be\nba be",
        "blank": "\n \u0301",
    }
    manifest, _ = made_of(texts, tmp_path)
    assert manifest.account("documents").kept == 43
    sentences = manifest.account(SENTENCES)
    assert sentences.total == 40 * 10 + 1 + 2 + 2
    assert sentences.dropped == {"too_long": 1, "reserved_character": 1, "blank": 2}
    sampled, _ = made_of(texts, tmp_path, small(sample_mb=0.02))
    documents = sampled.account("documents")
    assert 0 < documents.kept < 43
    assert documents.dropped == {"not_sampled": 43 - documents.kept}


def test_sentencepiece_passes_over_what_is_counted_as_left_out() -> None:
    """A sentence of the longest length is trained on; one byte more and it is not."""
    settings = small(character_coverage=1.0)

    def knows(sentence: str) -> bool:
        model = train_vocab.train(lambda: iter([*tiny_sentences(400), sentence]), settings, 10**6)
        return "q" in Tokenizer(model).pieces

    longest = "q" + " ba" * ((vocab_sample.MAX_SENTENCE_BYTES - 1) // 3)
    longest += "b" * (vocab_sample.MAX_SENTENCE_BYTES - len(longest))
    assert knows(longest)
    assert not knows(longest + "b")
    assert not knows("q \N{LOWER FIVE EIGHTHS BLOCK}")


@pytest.mark.parametrize(
    ("asked", "message", "least"),
    [
        (30_000, r"vocab_size is 30000.*at most (\d+) pieces", 0),
        (20, r"vocab_size is 20.*alone need (\d+)\.", 5),
    ],
)
def test_a_size_that_the_text_does_not_allow_names_one_that_it_does(
    asked: int, message: str, least: int, tmp_path: Path
) -> None:
    with pytest.raises(VocabularyError) as info:
        made_of(made_up(40), tmp_path, VocabularySettings(vocab_size=asked))
    found = re.search(message, str(info.value))
    assert found
    size = int(found.group(1)) + least
    settings = VocabularySettings(vocab_size=size)
    assert result_of(made_up(40), tmp_path, settings).vocab_size == size


def test_the_automatic_size_grows_with_the_text_and_is_never_too_large(tmp_path: Path) -> None:
    sizes = [train_vocab.auto_size(megabytes * 10**6) for megabytes in (0, 16, 100, 10**6)]
    assert sizes == [1_000, 4_000, 10_000, 30_000]
    few = result_of(made_up(2), tmp_path, VocabularySettings(vocab_size="auto"))
    assert 20 < few.vocab_size < 1_000
    characters = [chr(0x4E00 + number) for number in range(1_500)]
    chinese = {str(n): "".join(characters[n:]) + "。" for n in range(0, 1_500, 30)}
    many = result_of(chinese, tmp_path / "many", VocabularySettings(vocab_size="auto"))
    assert 1_300 < many.vocab_size < 2_000


def test_a_vocabulary_that_knows_too_few_characters_is_refused(tmp_path: Path) -> None:
    """Each document has characters of its own, of which the sample has a quarter."""
    texts = {str(n): chr(0x4E00 + n) * 50 + "。" for n in range(400)}
    settings = VocabularySettings(vocab_size="auto", sample_mb=0.01)
    with pytest.raises(VocabularyError, match=r"\d\d\.\d% of the text's characters are unknown"):
        made_of(texts, tmp_path, settings)


@pytest.mark.parametrize(
    ("texts", "sample_mb", "message"),
    [
        (made_up(3), 1e-6, "to train on: 0 of 3 documents.*left out are {}. Raise vocabulary.sam"),
        ({"a": "\n "}, 1.0, "to train on: 1 of 1 documents.*left out are {'blank': 2}"),
    ],
)
def test_a_sample_without_a_sentence_says_what_was_left_out_and_how_to_fill_it(
    texts: Texts, sample_mb: float, message: str, tmp_path: Path
) -> None:
    settings = small(sample_mb=sample_mb)
    with pytest.raises(VocabularyError, match=message):
        made_of(texts, tmp_path, settings)
    assert not list((tmp_path / "vocab").rglob("manifest.json"))


def test_new_text_keeps_the_vocabulary_until_another_is_asked_for(tmp_path: Path) -> None:
    asked = small(refresh="train")
    first, folder = made_of(made_up(40), tmp_path)
    kept, its_folder = made_of(made_up(60), tmp_path)
    corpus = first.input_manifests["corpus"].rsplit("/", 3)[2]
    assert f"corpus/{corpus}" in read_work(str(tmp_path)).before(f"vocab/{kept.key}")
    assert kept.settings["kept"] == f"vocab/{first.key}"
    assert not kept.result_as(VocabularyResult).trained
    assert (its_folder / "spiece.model").read_bytes() == (folder / "spiece.model").read_bytes()
    assert made_of(made_up(60), tmp_path)[0].key == kept.key
    other, its_folder = made_of(made_up(60), tmp_path, asked)
    assert (its_folder / "spiece.model").read_bytes() != (folder / "spiece.model").read_bytes()
    found, expected = [], [other.key, first.key, f"vocab/{other.key}"]
    for number in (60, 40, 80):  # what was trained on this text, then what was trained last
        made, _ = made_of(made_up(number), tmp_path)
        found.append(made.settings.get("kept", made.key))
    assert found == expected


def test_two_work_folders_with_the_same_history_have_the_same_vocabularies(tmp_path: Path) -> None:
    def contents(work: Path) -> list[tuple[str, str]]:
        made = [made_of(made_up(number), work)[0] for number in (40, 60, 80)]
        return [(each.key, each.content) for each in made]

    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_vocabulary_of_another_source_or_of_other_settings_is_not_kept(tmp_path: Path) -> None:
    made_of(made_up(40), tmp_path)
    larger, _ = made_of(made_up(60), tmp_path, small(vocab_size=121))
    corpus = Path(corpus_of(made_up(60), tmp_path))
    replace_in_manifest(corpus, "notes/**", "novels/**")
    elsewhere = read_manifest(train_vocab.run(SMALL, str(corpus), str(tmp_path)))
    assert not larger.settings.keys() & {"kept"}
    assert not elsewhere.settings.keys() & {"kept"}


def test_a_kept_vocabulary_that_no_longer_fits_is_told_by_its_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made_of(made_up(40), tmp_path)
    made_of(made_up(60), tmp_path)
    assert "no longer fits" not in caplog.text
    made_of({i: text.replace("a", "ж") for i, text in made_up(60).items()}, tmp_path)
    told = r"no longer fits: [\d.]+% of the characters unknown, 0.000% then\. Set vocabulary\.refr"
    assert re.search(told, caplog.text)


@needs_published
def test_a_given_model_is_copied_and_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = VocabularySettings(model=str(PUBLISHED))
    manifest, folder = made_of(made_up(40), tmp_path, settings)
    assert (folder / "spiece.model").read_bytes() == PUBLISHED.read_bytes()
    result = manifest.result_as(VocabularyResult)
    assert (result.vocab_size, result.trained, result.sample_share) == (30_000, False, 0)
    assert set(manifest.inputs) == {"corpus", "model"}
    assert manifest.accounts == []
    report = json.loads((folder / "report.json").read_text())
    assert (report["num_documents"], report["seen_in_training"]) == (40, True)
    assert "training 30,000 pieces" not in caplog.text


@needs_published
def test_another_content_of_the_given_model_is_another_result(tmp_path: Path) -> None:
    given = tmp_path / "given.model"
    shutil.copyfile(PUBLISHED, given)
    settings = VocabularySettings(model=str(given), vocab_size=30_000)
    first, _ = made_of(made_up(40), tmp_path, settings)
    given.write_bytes(model_of(made_up(40), tmp_path, SMALL))
    with pytest.raises(VocabularyError, match=r"has 120 pieces\. Set vocabulary.vocab_size=120"):
        made_of(made_up(40), tmp_path, settings)
    second, _ = made_of(made_up(40), tmp_path, settings.model_copy(update={"vocab_size": 120}))
    assert first.inputs["model"] != second.inputs["model"]
    assert first.key != second.key


def test_a_given_model_has_the_size_that_it_has_unless_another_is_set(tmp_path: Path) -> None:
    given = tmp_path / "given.model"
    given.write_bytes(model_of(made_up(40), tmp_path, SMALL))
    manifest, _ = made_of(made_up(40), tmp_path / "work", VocabularySettings(model=str(given)))
    assert manifest.result_as(VocabularyResult).vocab_size == 120
    with pytest.raises(VocabularyError, match=r"vocab_size is 30000, but .* has 120 pieces"):
        train_vocab.given_model(VocabularySettings(model=str(given), vocab_size=30_000))


def test_a_given_model_of_more_pieces_than_ids_is_refused(tmp_path: Path) -> None:
    given = tmp_path / "given.model"
    model = model_of(made_up(40), tmp_path, SMALL)
    # Protobuf: field 1 of the model is a piece, whose field 1 is its text.
    more = (f"{number:05x}".encode() for number in range(MAX_VOCAB_SIZE - 119))
    given.write_bytes(model + b"".join(b"\n\x07\n\x05" + piece for piece in more))
    with pytest.raises(VocabularyError, match=r"has 65537 pieces, .* at most 65536"):
        train_vocab.given_model(VocabularySettings(model=str(given)))


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "can't be used"), (b"no model", "SentencePiece model"), (b"", "can't be used")],
)
def test_a_given_model_that_is_none_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    given = tmp_path / "given.model"
    if content is not None:
        given.write_bytes(content)
    with pytest.raises(VocabularyError, match=rf"vocabulary.model is '.*given.model'.*{message}"):
        made_of(made_up(3), tmp_path, VocabularySettings(model=str(given)))


def test_the_report_is_in_the_manifest_and_of_documents_aside_if_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, folder = made_of(made_up(40), tmp_path)
    names = ["spiece.model", "spiece.vocab", "report.json"]
    assert [shard.path for shard in manifest.shards] == names
    report = json.loads((folder / "report.json").read_text())
    assert report["vocab_size"] == 120
    assert report["known_character_share"] == 1
    assert report["seen_in_training"]
    monkeypatch.setattr(vocab_sample, "REPORT_MB", 0.01)
    settings = small(sample_mb=0.02)
    manifest, folder = made_of(made_up(60), tmp_path, settings)
    report = json.loads((folder / "report.json").read_text())
    assert not report["seen_in_training"]
    assert 0 < report["num_documents"] <= 60 - manifest.account("documents").kept


# The report


def report_on(*sentences: str, tokenizer: Tokenizer | None = None) -> VocabularyReport:
    return measure(tokenizer or tiny_vocab(), [sentences], seen_in_training=False)


def test_on_its_own_text_all_is_known() -> None:
    report = report_on(*tiny_sentences(2000))
    assert report.known_character_share == 1
    assert report.unknown_piece_share == report.unknown_word_share == 0
    assert report.unknown_characters == []
    assert report.used_share > 0.9


def test_unknown_characters_are_counted_and_named() -> None:
    report = report_on("ba ☃☃ be☃ bi", "bo Ω")
    assert report.num_words == 6
    assert report.unknown_word_share == pytest.approx(3 / 6)
    assert report.known_character_share == pytest.approx(8 / 12)
    assert report.unknown_characters == [("☃", 3), ("Ω", 1)]


@pytest.mark.parametrize(
    ("pieces_per_word", "known_share", "told"),
    [
        (1.4, 0.9995, ""),
        (2.0, 0.9999, "2.00 pieces a word, 1.30 then"),
        (1.4, 0.98, "2.000% of the characters unknown, 0.010% then"),
    ],
)
def test_a_vocabulary_fits_until_words_fall_into_more_pieces_or_characters_are_unknown(
    pieces_per_word: float, known_share: float, told: str
) -> None:
    then = {"pieces_per_word": 1.3, "known_character_share": 0.9999}
    now = {"pieces_per_word": pieces_per_word, "known_character_share": known_share}
    assert describe_misfit(then, now) == told


def test_batches_and_documents_change_nothing_but_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentences = tiny_sentences(100)
    whole = measure(tiny_vocab(), [sentences], seen_in_training=False)
    monkeypatch.setattr("pipelines.train_vocab._LINES_PER_BATCH", 7)
    parts = measure(tiny_vocab(), [sentences[:30], [], sentences[30:]], seen_in_training=False)
    assert parts.num_documents == 3
    assert replace(parts, num_documents=1) == whole


@pytest.mark.parametrize("sentences", [[], [""], ["", "☃"]])
def test_any_text_has_a_report_with_shares_that_are_shares(sentences: list[str]) -> None:
    report = report_on(*sentences)
    values = asdict(report)
    assert all(0 <= values[name] <= 1 for name in values if name.endswith("_share"))
    assert json.loads(json.dumps(values))["num_pieces"] == report.num_pieces
    assert len(report.lines()) == 2


@needs_published
def test_the_published_vocabulary_needs_little_more_than_a_piece_a_word() -> None:
    report = report_on(
        "the river follows the old bridge in the morning, and nobody knows why.",
        tokenizer=Tokenizer(PUBLISHED.read_bytes()),
    )
    assert report.vocab_size == 30_000
    assert report.pieces_per_word == pytest.approx(15 / 13)
    assert report.unknown_piece_share == 0
