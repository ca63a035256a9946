"""One byte, several letters: Western Europe's code page is guessed, no other language is mangled by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiforge.questions.errors import UnclearError
from aiforge.questions.reading import Choices, opened
from tests.aiforge.questions.support import put, read

WESTERN = {
    "Spanish": "\u00bfD\u00f3nde est\u00e1 mi pedido? \u00a1N\u00ba 5, ma\u00f1ana!",
    "Portuguese": "N\u00e3o consigo, \u00e0s vezes, a devolu\u00e7\u00e3o?",
    "Italian": "Perch\u00e9 \u00e8 cos\u00ec? Qual \u00e8 la citt\u00e0?",
    "Danish": "Hvorn\u00e5r \u00e5bner b\u00f8rnehaven p\u00e5 l\u00f8rdag, l\u00e6rer?",
    "Icelandic": "Hva\u00f0 kostar \u00feetta? \u00deakka \u00fe\u00e9r!",
    "French": "O\u00f9 est pass\u00e9 l\u2019\u0153uf ? \u00c7a co\u00fbte cher \u00e0 No\u00ebl?",
    "Dutch": "Hoeveel kost het in Belgi\u00eb?",
}
OTHERS = {
    "Turkish": ("cp1254", "Ad\u0131n\u0131z ne?"),
    "more Turkish": ("cp1254", "Sipari\u015fim nerede, \u00f6\u011fle mi?"),
    "Turkish in ISO-8859-9": ("iso8859-9", "Nas\u0131l iptal edebilirim?"),
    "Polish": ("cp1250", "Jak zwr\u00f3ci\u0107 towar?"),
    "more Polish": ("cp1250", "Czy mog\u0119 j\u0105 zobaczy\u0107?"),
    "Czech": ("cp1250", "Kde je m\u016fj bal\u00edk?"),
    "Hungarian": ("cp1250", "Mennyi id\u0151?"),
    "Romanian": ("cp1250", "C\u00e2nd va fi livrat\u0103 comanda?"),
    "Croatian": ("cp1250", "Ho\u0107u li ve\u010deras?"),
    "Lithuanian": ("cp1257", "Ar galiu gr\u0105\u017einti prek\u0119?"),
    "Russian": ("cp1251", "\u041f\u0440\u0438\u0432\u0435\u0442"),
}


@pytest.mark.parametrize("text", WESTERN.values(), ids=WESTERN.keys())
def test_a_western_language_is_read_as_windows_1252(tmp_path: Path, text: str) -> None:
    with opened(put(tmp_path, "a.csv", f"id;q\n1;{text}\n".encode("cp1252"))) as found:
        assert [row.text for row in found] == [text]
        assert "Windows-1252 by its bytes" in found.note


@pytest.mark.parametrize(("codec", "text"), OTHERS.values(), ids=OTHERS.keys())
def test_of_another_language_it_is_shown_how_each_code_page_reads_it(
    tmp_path: Path, codec: str, text: str
) -> None:
    content = f"id;q\n1;{text}\n".encode(codec)
    with pytest.raises(UnclearError, match=r"line 2 is not UTF-8 .*; --encoding says it") as caught:
        read(tmp_path, "a.csv", content)
    right = [line for line in caught.value.details if line.endswith(f": 1;{text}")]
    assert len(right) == 1, caught.value.details
    said = right[0].split()[1].rstrip(":")
    assert [row.text for row in read(tmp_path, "a.csv", content, Choices(encoding=said))] == [text]


def test_the_line_that_is_shown_tells_the_code_pages_apart(tmp_path: Path) -> None:
    """An accent that all of them have says nothing."""
    content = "id;q\n1;A p\u00e9nzem?\n2;Mennyi id\u0151?\n".encode("cp1250")
    with pytest.raises(UnclearError, match=r"line 3 is not UTF-8 \(byte 0xf5\)"):
        read(tmp_path, "a.csv", content)
