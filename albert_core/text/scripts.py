"""Scripts that are written without blanks between words."""

UNSPACED_SCRIPTS = (
    *((0xE00, 0xFFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF)),
)
"""Thai, Lao and Tibetan, Burmese, Khmer, kana, and Chinese characters of the basic plane: first and
last code point. Where settings count words, two characters of these scripts are one."""
UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in UNSPACED_SCRIPTS)
"""Their characters, between the brackets of a regular expression."""
