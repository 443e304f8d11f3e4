import sentencepiece

from albert_core.contract.sentencepiece_model import without_character_map
from tests.albert_core.tiny_vocab import tiny_vocab


def test_without_its_table_a_model_has_the_same_pieces_and_maps_no_character() -> None:
    model = tiny_vocab().model
    name, stripped = without_character_map(model)
    assert name == "nmt_nfkc"
    assert len(stripped) < len(model) - 100_000
    before = sentencepiece.SentencePieceProcessor(model_proto=model)
    after = sentencepiece.SentencePieceProcessor(model_proto=stripped)
    size = before.vocab_size()
    assert [after.id_to_piece(i) for i in range(size)] == [
        before.id_to_piece(i) for i in range(size)
    ]
    assert before.normalize("\N{LATIN SMALL LIGATURE FI}") == "▁fi"
    assert after.normalize("\N{LATIN SMALL LIGATURE FI}") == "▁\N{LATIN SMALL LIGATURE FI}"


def test_a_model_without_a_table_stays_as_it_is() -> None:
    _, stripped = without_character_map(tiny_vocab().model)
    assert without_character_map(stripped) == ("nmt_nfkc", stripped)
