import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from albert_core.config import ModelSettings
from albert_core.model.albert import AlbertForPretraining
from albert_core.planning.parameters import (
    PUBLISHED_SIZES,
    Convention,
    ParameterCounts,
    PublishedSize,
    count_parameters,
)


def counted_in_a_model(model_settings: ModelSettings, vocab_size: int) -> ParameterCounts:
    """Build the model on the meta device and count its tensors."""
    with torch.device("meta"):
        model = AlbertForPretraining(model_settings, vocab_size)

    def number(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    counts = ParameterCounts(
        embeddings=number(model.encoder.embeddings),
        projection=number(model.encoder.projection),
        attention=number(model.encoder.attentions),
        feed_forward=number(model.encoder.feed_forwards),
        pooler=number(model.encoder.pooler),
        masked_lm=number(model.masked_lm),
        sentence_order=number(model.sentence_order),
    )
    assert counts.with_heads == number(model)
    return counts


# Without pooler, with pooler, with pooler and heads; and what the paper's number rounds from.
# Source: REFERENCE.md A.3, whose last four rows, table 12, are those of the encoders with pooler.
EXPECTED: dict[tuple[str, str], tuple[int, int, int, list[Convention]]] = {
    ("2", "BERT base"): (108_490_752, 109_081_344, 109_705_010, ["without pooler"]),
    ("2", "BERT large"): (333_557_760, 334_607_360, 335_691_058, ["without pooler"]),
    ("2", "ALBERT base"): (11_092_992, 11_683_584, 11_813_810, ["with pooler", "with heads"]),
    ("2", "ALBERT large"): (16_634_368, 17_683_968, 17_847_474, ["with pooler", "with heads"]),
    ("2", "ALBERT xlarge"): (54_528_512, 58_724_864, 59_021_490, []),
    ("2", "ALBERT xxlarge"): (205_814_272, 222_595_584, 223_158_450, []),
    ("3", "sharing none, E 64"): (87_057_408, 87_648_000, 87_728_882, ["without pooler"]),
    ("3", "sharing none, E 128"): (89_059_584, 89_650_176, 89_780_402, ["without pooler"]),
    ("3", "sharing none, E 256"): (93_063_936, 93_654_528, 93_883_442, ["without pooler"]),
    ("3", "sharing none, E 768"): (108_490_752, 109_081_344, 109_705_010, ["without pooler"]),
    ("3", "sharing all, E 64"): (9_090_816, 9_681_408, 9_762_290, ["with pooler", "with heads"]),
    ("3", "sharing all, E 128"): (
        11_092_992,
        11_683_584,
        11_813_810,
        ["with pooler", "with heads"],
    ),
    ("3", "sharing all, E 256"): (
        15_097_344,
        15_687_936,
        15_916_850,
        ["with pooler", "with heads"],
    ),
    ("3", "sharing all, E 768"): (
        30_524_160,
        31_114_752,
        31_738_418,
        ["without pooler", "with pooler"],
    ),
    ("4", "sharing attention, E 768"): (82_487_808, 83_078_400, 83_702_066, ["with pooler"]),
    ("4", "sharing ffn, E 768"): (
        56_527_104,
        57_117_696,
        57_741_362,
        ["without pooler", "with pooler"],
    ),
    ("4", "sharing attention, E 128"): (
        63_056_640,
        63_647_232,
        63_777_458,
        ["with pooler", "with heads"],
    ),
    ("4", "sharing ffn, E 128"): (
        37_095_936,
        37_686_528,
        37_816_754,
        ["with pooler", "with heads"],
    ),
    ("12", "3 layers, H 1024"): (16_634_368, 17_683_968, 17_847_474, ["with pooler", "with heads"]),
    ("12", "3 layers, H 2048"): (54_528_512, 58_724_864, 59_021_490, []),
    ("12", "3 layers, H 4096"): (205_814_272, 222_595_584, 223_158_450, []),
    ("12", "3 layers, H 6144"): (457_763_328, 495_518_208, 496_347_314, []),
    ("", "BERT base, released"): (108_891_648, 109_482_240, 110_106_428, []),
    ("", "BERT large, released"): (334_092_288, 335_141_888, 336_226_108, []),
}
for row in ("sharing all, E 768", "sharing none, E 768", "sharing all, E 128"):
    EXPECTED["4", row] = EXPECTED["3", row]  # the same model, printed twice
EXPECTED["4", "sharing none, E 128"] = EXPECTED["3", "sharing none, E 128"]


def name_of(published: PublishedSize) -> str:
    return f"table {published.table}, {published.row}"


def test_every_published_row_is_there_once() -> None:
    rows = [(published.table, published.row) for published in PUBLISHED_SIZES]
    assert sorted(rows) == sorted(EXPECTED)


@pytest.mark.parametrize("published", PUBLISHED_SIZES, ids=name_of)
def test_a_published_model_has_the_parameters_of_its_row(published: PublishedSize) -> None:
    *expected, matching = EXPECTED[published.table, published.row]
    model = counted_in_a_model(published.settings, published.vocab_size)
    assert list(model.by_convention().values()) == expected
    assert published.matching == matching


@pytest.mark.parametrize("published", PUBLISHED_SIZES, ids=name_of)
def test_a_shared_row_of_the_paper_counts_the_pooler_and_an_unshared_one_does_not(
    published: PublishedSize,
) -> None:
    if not published.matching:
        off = {"ALBERT xlarge", "ALBERT xxlarge", "BERT base, released", "BERT large, released"}
        assert published.row in off | {f"3 layers, H {width}" for width in (2048, 4096, 6144)}
    elif published.settings.sharing == "none":
        assert published.matching == ["without pooler"]
    else:
        assert "with pooler" in published.matching


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_arithmetic_counts_what_a_model_has_part_by_part(data: st.DataObject) -> None:
    num_layers = data.draw(st.integers(1, 6))
    heads = data.draw(st.sampled_from([1, 2, 4]))
    hidden = heads * data.draw(st.integers(1, 8))
    model_settings = ModelSettings(
        embedding_size=data.draw(st.sampled_from([hidden, 5, 12])),
        hidden_size=hidden,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        intermediate_size=data.draw(st.integers(1, 40)),
        sharing=data.draw(st.sampled_from(["all", "attention", "ffn", "none"])),
        num_hidden_groups=data.draw(st.integers(1, num_layers)),
        inner_group_num=data.draw(st.integers(1, 3)),
        max_position_embeddings=data.draw(st.integers(1, 30)),
        type_vocab_size=data.draw(st.integers(2, 4)),
    )
    vocab_size = data.draw(st.integers(1, 100))
    assert count_parameters(model_settings, vocab_size) == counted_in_a_model(
        model_settings, vocab_size
    )
