import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.corpus.sentences import cut_long, split_sentences
from tests.pipelines.corpus.normalised import normalise_text

LANGUAGES = st.sampled_from(["en", "de", "fr", "ru", "zh", "hi", "xx"])
PROSE = st.text(
    st.sampled_from("aA1 .!?,;:'\"()«»…。।—\n\u2018\u2019\uff1f\uff01\u3000\xa0\u200b\x85\u2028é字")
    | st.characters()
)


DIALOGUE = {
    "en": """
"I came. | I saw. | I left." | That was all he said to Dr. Moore on Jan. 3 in the U.S. Senate.
Nobody answered.
"You may rely on it," said Mr. Chichely. | "I have it from Mrs. Dean herself."
The room was silent.
"Oh!" cried she, "what a day!" | He laughed. | "What a day indeed!" he said. | "Are you cold?"
"No." | "Then come in," she replied, and shut the door.
“Is that you, John?” | “It is.” | “Then why,” she asked, “did you not write?”
He had no answer. | ‘Never mind,’ she said. | ‘It is past.’
The U.S. economy grew by 3.5 percent in the first quarter, said J. P. Morgan & Co. analysts.
It fell later (see Fig. 2). | (This was expected.) | The rest followed at 5 p.m. on Friday.
Who knows?
He paused... then went on. | She waited . . . and waited. | "Wait... | Did you hear that?"
"Yes!" | He wrote "The End." | Then he slept.
It was not (as some say!) a mistake. | Was it?! | Visit example.com for more.
Prof. Smith et al. disagree, e.g. in vol. 3, no. 4, pp. 12-15. | George Washington Jr. left.
"Stop! | Thief!" the man shouted. | The boy ran.
'Let him go,' said the old woman; 'he is only a child.' | She was right.
    """,
    "de": """
»Ich kam. | Ich sah. | Ich ging.« | Das war alles, was er zu Dr. Maier am 3. Januar 1912 sagte.
Niemand antwortete.
»Was ist mit mir geschehen?« dachte er. | Es war kein Traum.
»Nun, die Hoffnung ist noch nicht aufgegeben«, sagte er.
»Habe ich das Geld einmal beisammen, so mache ich es.« | Dann stand er auf.
»Gregor«, rief es – es war die Mutter –, »es ist dreiviertel sieben.
Wolltest du nicht wegfahren?« | Die sanfte Stimme! | Gregor erschrak.
„Kommst du mit?“ | „Nein.“ | „Warum nicht?“, fragte sie.
„Weil ich, wie gesagt, keine Zeit habe“, antwortete er. | „Schade!“ | Sie ging allein.
Die Firma wurde am 12. März 1998 in Frankfurt a. M. gegründet.
Sie beschäftigt ca. 250 Mitarbeiter, z. B. in der Produktion.
Im 19. Jahrhundert war das anders. | Prof. Schmidt u. a. bestreiten das (vgl. S. 12 ff.).
König Ludwig II. starb 1886. | Die Nr. 5 lebt!
"Wirklich?" fragte Hr. Weber. | "Ja. | Ganz sicher." | Er nickte... und schwieg.
(Das war zu erwarten.) | Der Preis stieg auf 3.500 Euro, d. h. um 3,5 Prozent.
»Hilfe! | Hilfe!« schrie der Mann. | »Wo sind Sie?« rief sie. | »Hier!« | Dann war es still.
›Seltsam‹, dachte sie.
    """,
    "fr": """
« Je suis venu. | J’ai vu. | Je suis parti. »
C’est tout ce qu’il dit à M. Dupont le 3 janv. 1912. | Personne ne répondit.
« Est-ce toi, Jean ? » | « Oui. » | « Alors pourquoi, demanda-t-elle, n’as-tu pas écrit ? »
Il ne répondit pas. | « Quelle journée ! » dit-il. | Elle sourit.
– Vous venez ? demanda-t-il. | – Non, répondit-elle. | Je suis fatiguée.
Mme Martin et Mlle Petit sont arrivées à 17 h. 30 avec le Dr. Leroy.
Elles ont acheté des pommes, des poires, etc. et sont reparties. | Le prix a augmenté de 3,5 %.
Pourquoi ? | Nul ne le sait (voir p. 12 et suiv.). | Au XIXe siècle, c’était différent.
"Vraiment ?" demanda M. Weber. | "Oui ! | Bien sûr !" | Il hésita... puis se tut.
« Au secours ! | Au voleur ! » cria l’homme. | L’enfant s’enfuit.
«Tu crois?» dit-elle. | «J’en suis sûr.» | Elle haussa les épaules.
V. Hugo et J. M. Blanc y vivent.
    """,
    "ru": """
«Я пришёл. | Я увидел. | Я ушёл». | Это всё, что он сказал г. Иванову 3 янв. 1912 г. в Москве.
Никто не ответил.
— Ты идёшь? — спросил он. | — Нет, — ответила она. | — Я устала. | Он вздохнул и вышел.
«Что со мной?» — подумал он. | Это был не сон. | «Ну что ж, — сказал он, — подождём». | «Когда?»
«Завтра!» | Дверь закрылась.
В 1998 г. компания открыла офис на ул. Ленина, д. 5, кв. 12.
Там работает ок. 250 чел., т. е. больше, чем раньше. | А. С. Пушкин и Н. Гоголь дружили.
Цена выросла на 3,5 % (см. рис. 2). | В XIX в. всё было иначе. | Почему? | И т. д. и т. п.
— Помогите! | Помогите! — кричал человек. | — Где вы? — крикнула она. | — Здесь!
Потом стало тихо... | "Странно", — подумала она. | "Очень странно!"
Он сказал: «Я не знаю». | Она ответила: «Жаль! | Очень жаль». | Они расстались.
    """,
    "zh": """
“我来了。 | 我看见了。 | 我走了。” | 这就是他说的全部。 | 没有人回答。
“不来,”她回答,“我累了。” | 他叹了口气,走了出去。
“是你吗,约翰?” | “是我。” | 他没有回答。 | 真奇怪!
公司成立于1998年,总部位于北京。 | 价格上涨了3.5%(见图2)。 | 为什么?
《红楼梦》是一部小说。 | 他说:“我不知道。” | 她笑了。
「很好!」 | 「那就好。」 | 他們走了。
“这里!” | 后来一切都安静了。
    """,
    "ar": """
«جئت. | رأيت. | غادرت.» | هذا كل ما قاله للدكتور أحمد. | لم يجب أحد.
«لا.» | «لماذا؟» | «لأنني متعب»، أجابت المرأة. | تنهد الرجل وخرج.
تأسست الشركة عام 1998 في القاهرة. | يعمل فيها نحو 250 شخصا؛ وهي من أكبر الشركات.
ارتفع السعر بنسبة 3.5 في المئة. | لماذا؟ | لا أحد يعرف!
قال: "لا أعرف." | ثم خرج. | "هنا!" | ثم ساد الصمت...
وصل د. أحمد و أ. محمد إلى المدينة. | كان الجو حارا. | هل كان ذلك صحيحا؟ | نعم، كان كذلك.
    """,
}
"""Paragraphs by language; a sentence ends at each bar."""


@pytest.mark.parametrize("language", DIALOGUE)
def test_quotations_abbreviations_and_numbers_neither_hide_nor_make_an_end(language: str) -> None:
    marked = DIALOGUE[language].strip()
    text = marked.replace(" | ", "" if language == "zh" else " ")
    assert split_sentences(text, language) == marked.replace(" | ", "\n").split("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It cost 3.5 million. He paid.", ["It cost 3.5 million.", "He paid."]),
        ("A heading\nThe text below it.", ["A heading", "The text below it."]),
        ("  blanks round it.  ", ["blanks round it."]),
        ("no full stop", ["no full stop"]),
        ("Wait for me. Garstin is ill. I go.", ["Wait for me.", "Garstin is ill.", "I go."]),
        ("", []),
        (" \n\n ", []),
    ],
)
def test_sentences_are_found_in_order(text: str, expected: list[str]) -> None:
    assert split_sentences(text, "en") == expected


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "Read changelog.Debian.gz in ../../etc. | Then go."),
        ("en", '"You are a child." | I saw nothing. | No. | See (in /tmp/). | It is.'),
        ("en", "They feared the gods.|The king ran javax.Swing.Frame, twice. | They left."),
        ("en", "Copies (part 1) are made (Henry I) here. | They last."),
        ("de", "Öffnen Sie Format… | Wählen Sie A, B, … E."),
        ("en", "Wait... | I see. | You coward?! | I’ll go!! | I am *sure.* | Go. | I... am here.*"),
        ("en", "• One is here. | Two is there.\n■ Three. | Four."),
        ("ru", "● Графа звали Ланбек'х. | Он пришёл. | Его брата звали Капу'е. | Он ушёл."),
        ("ca", "El Dr. Pla va venir. | 20 persones el van rebre."),
        ("da", "Mødet er kl. 10, dvs. Onsdag. | Vi tager det med. | Klik på OK. | Det er nok."),
        ("it", "Il sig. Rossi e il dott. Bianchi (cfr. Dante) vendono l'auto. | Dico di no. | E."),
        ("de", "Er wurde vermögend. | 1809 begann er (vgl. Bd. 3, Abb. 12). | »Gut!« | »24?«"),
        ("fr", "Il s'égare (DNS, etc.) ; il le sait : « . », etc. | Bien."),
        ("ru", "Рис. 5. | Схема дома. | Табл. 2 важна (табл. 3)."),
        ("ru", "Список: немецкий, испанский и др. | Полный список есть."),
        (
            "zh",
            "步骤是 1. 更新 2. 安装。|他是副局长。|1997年他走了。|debian是系统。|《古兰经》是书。",
        ),
        (
            "zh",
            "（我们走。|你来。）|他走了（我们来。|你去。）。|（真的！）“好。”|（是吗？）他笑了。",
        ),
        ("zh", "• 你好。|我来了。"),
        ("ar", "قال ص. 15 من الكتاب هذا. | ثم خرج. | editor محرر نصوص."),
        ("ar", "جاء أ.د. أحمد. | ثم ذهب."),
        ("hi", "डॉ. शर्मा बी.ए. पास हैं। | यह अच्छा है.|वह गया."),
        (
            "ja",
            "「行くぞ！」と叫んだ。|「はい。」の一言だ。|「ああ。」|ところで、雨だ。|「うん！」|そして去った。",
        ),
        ("th", "เกิดเมื่อปีพ.ศ. 2560 ที่ จ. ตรัง กับ ดร. มานี ใน ม.ค. 2561 เขาว่าดีครับ. | แล้วเขาก็ไป."),
    ],
)
def test_a_name_is_not_split_and_a_number_or_title_may_begin_a_sentence(
    language: str, marked: str
) -> None:
    expected = [sentence.strip() for sentence in marked.replace("\n", "|").split("|")]
    assert split_sentences(marked.replace("| ", "").replace("|", ""), language) == expected


def test_an_unknown_language_is_split_by_general_rules() -> None:
    assert split_sentences("One thing. Another.", "no-such") == ["One thing.", "Another."]


@given(st.lists(PROSE, max_size=4), LANGUAGES)
@settings(max_examples=200)
def test_a_text_is_split_as_its_paragraphs_are(paragraphs: list[str], language: str) -> None:
    text = normalise_text("\n".join(paragraphs), lines_are_sentences=True)
    alone = [s for p in text.split("\n") for s in split_sentences(p, language)]
    assert split_sentences(text, language) == alone


@given(PROSE, LANGUAGES, st.integers(2, 30))
@settings(max_examples=200)
def test_no_character_is_lost_and_no_sentence_is_empty_or_longer_than_it_may_be(
    text: str, language: str, max_characters: int
) -> None:
    sentences = split_sentences(normalise_text(text), language)
    parts = list(cut_long(sentences, max_characters))
    for each in (sentences, parts):
        assert "".join("".join(each).split()) == "".join(normalise_text(text).split())
        assert all(part == part.strip() != "" and "\n" not in part for part in each)
    assert all(len(part) <= max_characters for part in parts)


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("One two, three; four, five six", ["One two, three;", "four, five six"]),
        ("One two three, four five, six", ["One two three,", "four five, six"]),
        ("One two three four five 1,234,567", ["One two three four", "five 1,234,567"]),
        ("0123456789012345678901234", ["01234567890123456789", "01234"]),
        ("short", ["short"]),
    ],
)
def test_a_long_sentence_is_cut_at_the_best_place(sentence: str, parts: list[str]) -> None:
    assert list(cut_long([sentence], max_characters=20)) == parts


def test_sentences_are_found_in_a_paragraph_of_any_length() -> None:
    sentence = "It was seen by many (see below) in the 'park'. "
    assert len(split_sentences(sentence * 20_000, "en")) == 20_000


@pytest.mark.timeout(60)  # with the square of the length it would take a quarter of an hour
def test_a_long_run_of_marks_takes_no_longer_than_other_text() -> None:
    assert "".join(split_sentences("?!" * 120_000, "en")) == "?!" * 120_000
