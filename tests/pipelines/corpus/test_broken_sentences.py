import pytest

from pipelines.corpus.broken_sentences import KINDS, REVERSED, broken, with_words_reversed

BROKEN = [
    ("neighbours_swapped", "Return the number of the rows.", "Return the number the of rows."),
    ("neighbours_swapped", "The array is returned here.", "Array the is returned here."),
    ("neighbours_swapped", "It can be set.", "It be can set."),
    ("this_and_these", "This function is slow.", "These function is slow."),
    ("this_and_these", "We know these men have left.", "We know this men have left."),
    ("pronoun_and_verb", "If she is here, go.", "If she are here, go."),
    ("pronoun_and_verb", "Then they were gone.", "Then they was gone."),
    ("noun_and_verb", "The ability has limits.", "The ability have limits."),
    ("noun_and_verb", "Go if the values are set.", "Go if the values is set."),
    ("there_is", "There is a large tree.", "There are a large tree."),
    ("there_is", "There are two cities here.", "There is two cities here."),
    ("a_and_an", "An error is a problem I know.", "A error is a problem I know."),
    ("article_of_several", "It has the names of all.", "It has a names of all."),
    ("of_dropped", "Return the name of the file.", "Return the name the file."),
    ("to_dropped", "He is able to go.", "He is able go."),
    ("to_dropped", "It is due to the rain.", "It is due the rain."),
    ("the_dropped", "All in the world.", "All in world."),
    ("be_dropped", "It must be changed.", "It must changed."),
    ("to_added", "It can be set.", "It can to be set."),
    ("the_added", "Go in this house.", "Go in the this house."),
    ("finite_changed", "This is slow.", "This be slow."),
    ("infinitive_changed", "I want to be there.", "I want to is there."),
    ("pronoun_case", "She went with them.", "She went with they."),
]


def ways(sentence: str) -> dict[str, set[str]]:
    """Return what 40 seeds make of ``sentence``, by kind."""
    found: dict[str, set[str]] = {}
    for seed in range(40):
        for kind, text in broken(sentence, seed).items():
            found.setdefault(kind, set()).add(text)
    return found


@pytest.mark.parametrize(("kind", "good", "bad"), BROKEN)
def test_a_rule_breaks_what_it_is_named_for(kind: str, good: str, bad: str) -> None:
    assert bad in ways(good)[kind]


def test_every_rule_has_an_example() -> None:
    assert {kind for kind, *_ in BROKEN} == KINDS.keys() - {REVERSED}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("this_and_these", "Does this function calls return?"),  # these function calls
        ("this_and_these", "Run these functions as root."),  # this functions as root
        ("pronoun_and_verb", "I wish it was mine."),  # it were
        ("pronoun_and_verb", "None of you are late."),  # none of you is
        ("noun_and_verb", "See if the value was set."),  # if the value were
        ("there_is", "There is a large number of them."),  # there are a large number
        ("a_and_an", "Take a union, a URL or an hour."),  # letters do not tell
        ("of_dropped", "All of the men left."),  # all the men
        ("of_dropped", "Know the value of the option chosen."),  # the value the option chose
        ("to_dropped", "You have to set it."),  # have set
        ("the_dropped", "Give it to the function."),  # to function
        ("infinitive_changed", "May be left out."),  # May, the month
        ("pronoun_case", "He gave her book to her."),  # a possessive
    ],
)
def test_what_might_stay_right_is_left_alone(kind: str, sentence: str) -> None:
    assert kind not in ways(sentence)


def test_the_place_is_drawn_by_the_seed_and_the_first_letter_stays_large() -> None:
    sentence = "A river is a friend of an artist."
    assert broken(sentence, 3) == broken(sentence, 3)
    assert ways(sentence)["a_and_an"] == {
        "An river is a friend of an artist.",
        "A river is an friend of an artist.",
        "A river is a friend of a artist.",
    }


@pytest.mark.parametrize("text", ["", " ", "Der Hund ist im Garten.", "猫がいます。", "x = f(y)"])
def test_what_is_not_english_is_not_broken(text: str) -> None:
    assert broken(text, 1) == {}


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Er las ein Buch.", {"ein las Er Buch.", "Er Buch ein las."}),
        ("他已经读过了这本。", {"过了经读他已这本。", "他已这本过了经读。"}),
        ("이 책을 읽었다.", {"읽었다 책을 이."}),
        ("Ja, gut.", {"Ja, gut."}),
        ("!", {"!"}),
    ],
)
def test_three_neighbouring_words_are_reversed(sentence: str, expected: set[str]) -> None:
    assert {with_words_reversed(sentence, seed) for seed in range(40)} == expected
