import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.readers import wikipedia
from pipelines.readers.wikipedia import HIDDEN_NAMESPACES, plain_text

EXAMPLES = {
    "bold_and_italic": ("'''Rome''' is ''old'', '''''very''''' old.", "Rome is old, very old."),
    "apostrophe_before_italic": ("dans l'''Histoire'' de", "dans l'Histoire de"),
    "apostrophe_before_bold": ("dans l''''Histoire''' de", "dans l'Histoire de"),
    "apostrophe_after_italic": ("The ''Iliad'''s death.", "The Iliad's death."),
    "initials_in_bold": ("('''N'''ew '''T'''eam) a ''b''", "(New Team) a b"),
    "link": ("[[Rome]] and [[Rome|the city]]s", "Rome and the citys"),
    "link_to_a_namespace": ("[[:Category:Cats]], [[wikt:cat|cat]]", "Category:Cats, cat"),
    "link_with_a_colon": ("[[Alien: Covenant]]", "Alien: Covenant"),
    "file": ("[[File:A.jpg|thumb|A [[small|tiny]] [[cat]].]]Text.", "Text."),
    "file_in_german": ("[[Datei:A.jpg|mini|Eine [[Katze]].]]Text.", "Text."),
    "file_in_an_unknown_language": ("[[Xyzzy:A b.JPG|thumb|Words.]]Text.", "Text."),
    "file_in_a_link": ("[[a|b [[File:x.png|20px]] c]]", "b c"),
    "category": ("Text.\n[[Category:Cats|*]]\n[[Catégorie:Chats]]", "Text."),
    "interlanguage_link": ("Text.\n[[de:Katze]]\n[[zh-min-nan:X]]", "Text."),
    "external_link": ("See [https://x.org/a?b=1 the page], [http://y.org].", "See the page, ."),
    "template": ("A {{a|b={{c|{{{d}}}}}|e}} b.", "A b."),
    "template_over_lines": ("{{Infobox\n| a = {{b\n|c}}\n| d = [[e]]\n}}\nText.", "Text."),
    "template_in_parentheses": ("Rome ({{IPA|x}}; {{lang|it|Roma}}; {{x}}) is.", "Rome (Roma) is."),
    "empty_parentheses": ("Rome ({{IPA|x}}, {{y}}) is. X ({{a}}).", "Rome is. X."),
    "convert": ("It is {{convert|10|km|mi|abbr=on}} long.", "It is 10 km long."),
    "convert_a_range": ("{{convert|10|to|20|km|mi}}, {{cvt|1|-|2|m}}", "10 to 20 km, 1–2 m"),
    "numbers": ("{{unité|5|m|2}}, {{formatnum:1,5}}{{formatnum:{{a}}}}", "5 m2, 1,5"),
    "date": ("{{date-|1 mai 1871}}, {{date||mai|1871}}, {{date}}b", "1 mai 1871, mai 1871, b"),
    "readings": ("{{仮リンク|甲|en|A}}と{{読み仮名|'''東京'''|とう}}", "甲と東京"),
    "lang": ("{{lang|fr|le [[mot|texte]]}}, {{lang-de|Wort}}", "le texte, Wort"),
    "link_in_a_template": ("{{quote|the [[wikt:bondman|bond-man's]] toil}}", "the bond-man's toil"),
    "values_with_names": ("{{quote|text=Be bold.|by=A}} {{nobr|1=x = y}}", "Be bold. x = y"),
    "ordinals": ("{{1er}}, {{XIXe siècle}}, {{s-|V|e}}", "1er, XIXe siècle, Ve siècle"),
    "nihongo": ("{{nihongo|Tokyo|東京|Tōkyō|lead=yes}}", "Tokyo (東京, Tōkyō)"),
    "convert_without_values": ("A {{convert}} {{convert|5}} b {{lang}}.", "A b ."),
    "table": ('A\n{| class="x"\n|-\n| b || c\n{|\n| d\n|}\n|}\nE', "A\nE"),
    "table_not_closed": ("A\n\n{|\n|-\n| b || c\n! d | e\n\nF", "A\nF"),
    "ref": ('A<ref>b {{c}}</ref> d<ref name="e"/>,<ref name=f>g</ref> h.', "A d, h."),
    "ref_not_closed": ("A<ref> b.", "A b."),
    "comment": ("A <!-- b\n{{ --> c.", "A c."),
    "comment_not_closed": ("A b. <!-- c", "A b."),
    "math": ("Let <math>x_{{i}}</math> be <chem>H2O</chem> now.", "Let be now."),
    "code": ("<syntaxhighlight lang=c>\nint x;\n</syntaxhighlight>\nText.", "Text."),
    "gallery": ("<gallery>\nFile:A.jpg|b\n</gallery>\nText.", "Text."),
    "nowiki": ("<nowiki>[[a]] {{b}} '' &amp;</nowiki>.<nowiki />", "[[a]] {{b}} '' &amp;."),
    "html": ('<div class="a">B <span>c</span></div><center>D</center>', "B c\nD"),
    "line_break": ("One<br />two", "One\ntwo"),
    "sub_and_sup": ("H<sub>2</sub>O", "H2O"),
    "not_a_tag": ("a <b and c> d, x < y", "a d, x < y"),
    "entities": ("a&nbsp;b &ndash; &#8364; &amp;lt; &lt;b&gt; AT&T", "a b – € &lt; <b> AT&T"),
    "lists": ("* One\n** Two\n# Three\n: Four\n; Five\n*", "One\nTwo\nThree\nFour\nFive"),
    "paragraphs": ("One\ntwo.\n\nThree.\n* Four\nfive", "One two.\nThree.\nFour\nfive"),
    "headings": ("== A ==\nX\n=== B ===\n\n==C==\n===D===\nY\n== E ==", "A\nX\nC\nD\nY"),
    "only_headings": ("== A ==\n== B ==", ""),
    "magic_words": ("__NOTOC__Text.\n__KEIN_INHALT__ of __init__", "Text.\nof __init__"),
    "language_variants": ("-{zh-hans:计算机;zh-hant:電腦}-在-{里}--{H|zh:x}-", "计算机在里"),
    "lone_ends": ("a }} b ]] c [[ d {{ e", "a b c d e"),
    "nothing": ("", ""),
}  # fmt: skip
NESTED = [
    *("[[", "]]", "{{", "}}", "{|\n", "\n|}", "<ref>", "</ref>", "<ref", "<!--", "-", "''", "'''"),
    *("a'''b", " ", "(", " )", ",", "( ", "(,", "=", "\n=", "\n*", "&", "&#", "-{", "__", "|"),
    *("[http://", "[[a|", "[[a:b|", "{{lang|a|", "<nowiki>", "{{{", "}}}", "<b ", "\n|", "\n!"),
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_markup_becomes_the_words_that_it_shows(name: str) -> None:
    markup, shown = EXAMPLES[name]
    assert plain_text(markup) == shown


def test_namespaces_of_the_dump_are_left_out() -> None:
    assert plain_text("[[Foo:a|b]] c") == "b c"
    assert plain_text("[[Foo bar:a|b]] [[foo_bar:d]] c", HIDDEN_NAMESPACES | {"foo bar"}) == "c"


@example(["{{{", "[[", "{{{", "0"])
@given(
    st.lists(st.sampled_from([*NESTED, "a", "\n", "File:", ">", "</", "/>"]) | st.text(max_size=3))
)
def test_any_markup_gives_text_without_pairs(parts: list[str]) -> None:
    markup = "".join(parts)
    text = plain_text(markup)
    assert text == text.strip("\n")
    if "nowiki" not in markup and "&" not in markup:
        assert "{{" not in text
        assert "[[" not in text


@given(st.sampled_from(sorted(wikipedia._INLINE)), st.lists(st.sampled_from(["", "a", "-", "b=c"])))
def test_a_template_with_any_values_gives_text(name: str, values: list[str]) -> None:
    assert "{{" not in plain_text("{{" + "|".join([name, *values]) + "}}")


@pytest.mark.parametrize("part", NESTED)
@pytest.mark.parametrize("closing", ["", "mirrored"])
def test_time_grows_with_the_text_only(part: str, closing: str) -> None:
    pairs = str.maketrans("[]{}()<>", "][}{)(><")

    def seconds(repeats: int) -> float:
        mirrored = part[::-1].translate(pairs) * repeats if closing else ""
        markup = part * repeats + mirrored
        begin = time.process_time()
        plain_text(markup)
        return time.process_time() - begin

    # Four times the text takes four times as long, and sixteen times where time is quadratic.
    assert seconds(40_000) < 9 * seconds(10_000) + 0.05
