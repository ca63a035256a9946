"""Whether letters are those of Western Europe: by where in a word they stand.

Windows-1250, -1254 and -1257 have other letters on the bytes of Windows-1252, so every text in one of
them is a text in the other, too. But an ø between vowels is no Danish one, it is a Czech ř.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

_PLACES: Final = ("_c", "_v", "__", "cc", "cv", "c_", "vc", "vv", "v_")
"""What stands before and behind a letter: no letter, a consonant or a vowel."""
_MIDDLE: Final = 4
_WEIGHTS: Final[Mapping[str, Mapping[int, str]]] = {
    "cp1250": {
        0xE0: "858838748",  # à
        0xE3: "244060281",  # ã
        0xE5: "848878656",  # å
        0xE6: "705833300",  # æ
        0xE8: "207615303",  # è
        0xEA: "844313210",  # ê
        0xEC: "444002445",  # ì
        0xEF: "404202510",  # ï
        0xF0: "424878868",  # ð
        0xF1: "444443080",  # ñ
        0xF2: "614808304",  # ò
        0xF5: "040050163",  # õ
        0xF8: "825824300",  # ø
        0xF9: "444021346",  # ù
        0xFB: "344211442",  # û
        0xFE: "875712702",  # þ
        0x9C: "064141000",  # œ
    },
    "cp1254": {
        0xF0: "444888448",  # ð
        0xFD: "421100030",  # ý
        0xFE: "855733000",  # þ
    },
    "cp1257": {
        0xE0: "558553543",  # à
        0xE1: "555784544",  # á
        0xE2: "243000140",  # â
        0xE3: "444687485",  # ã
        0xE6: "845771644",  # æ
        0xE7: "084052086",  # ç
        0xE8: "708827806",  # è
        0xEA: "844858846",  # ê
        0xEB: "144020467",  # ë
        0xEC: "304308205",  # ì
        0xED: "818858737",  # í
        0xEE: "144000443",  # î
        0xEF: "404300501",  # ï
        0xF0: "003354456",  # ð
        0xF1: "444444484",  # ñ
        0xF2: "514508107",  # ò
        0xF4: "644846444",  # ô
        0xF8: "775780440",  # ø
        0xF9: "444446448",  # ù
        0xFA: "846888745",  # ú
        0xFB: "144023342",  # û
        0xFD: "844857444",  # ý
        0xFE: "564423100",  # þ
    },
}
"""Of each byte that another code page reads as another letter: a digit for each place. Above 4 it is
more frequent there in the Western language that has it most than in the language of that code page that
has it most, in steps of 1.5 bits up to 4; below 4 the other way round. Counted in the 30,000 words of
each language that wordfreq 3.1.1 has first, in German, French, Spanish, Portuguese, Italian, Dutch,
Danish, Norwegian, Swedish, Finnish, Icelandic, Catalan and English; Polish, Czech, Slovak, Hungarian,
Romanian, Croatian and Slovene; Turkish; Lithuanian and Latvian."""

_CAPITALS: Final = b"\x8c" + bytes(byte for byte in (*range(0x41, 0x5B), *range(0xC0, 0xDF)) if byte != 0xD7)
_LOWER: Final = bytes.maketrans(_CAPITALS, b"\x9c" + bytes(byte + 0x20 for byte in _CAPITALS[1:]))
_VOWELS: Final = frozenset(
    b"aeiouy\x9c\xe0\xe1\xe2\xe3\xe4\xe5\xe6\xe8\xe9\xea\xeb\xec\xed\xee\xef"
    b"\xf2\xf3\xf4\xf5\xf6\xf8\xf9\xfa\xfb\xfc\xfd\xff"
)
_CONSONANTS: Final = frozenset(b"bcdfghjklmnpqrstvwxz\x9a\x9e\xdf\xe7\xf0\xf1\xfe")
_LETTERS: Final = re.compile(rb"(?s)(?<=(.))([\x9c\xe0-\xf6\xf8-\xfe])(?=(.))")


class Letters:
    """The letters beyond ASCII of one text in Windows-1252, each with its neighbours."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[bytes, bytes, bytes]] = Counter()

    def add(self, text: bytes) -> None:
        """More of the text, that begins and ends between words."""
        self._seen.update(_LETTERS.findall(b"\n" + text.translate(_LOWER) + b"\n"))

    @property
    def are_western(self) -> bool:
        """Whether they are as much at home in Western Europe as wherever another code page is used."""
        return all(self._weight(weights) >= 0 for weights in _WEIGHTS.values())

    def _weight(self, weights: Mapping[int, str]) -> int:
        return sum(
            (int(digits[_PLACES.index(_kind(before) + _kind(behind))]) - _MIDDLE) * count
            for (before, letter, behind), count in self._seen.items()
            if (digits := weights.get(letter[0])) is not None
        )


def _kind(neighbour: bytes) -> str:
    return "v" if neighbour[0] in _VOWELS else "c" if neighbour[0] in _CONSONANTS else "_"
