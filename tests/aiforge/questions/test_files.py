"""Files as people have them: the right reading, or the one error that helps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aiforge.questions.errors import BadLinesError, UnclearError
from aiforge.questions.reading import NO_CHOICES, Choices, opened
from tests.aiforge.questions.support import BOM, put

AB: list[tuple[str | None, Any]] = [("1", "a?"), ("2", "b?")]

SIGNS = "\u00a7 5: 3\u00bd St\u00fcck \u2020 1900 \u00e0 10\u20acpro m\u00b2 \u2026und CAF\u00c9?"


@dataclass(frozen=True)
class Case:
    name: str
    content: bytes
    rows: list[tuple[str | None, Any]] = field(default_factory=lambda: AB)
    says: str = ""
    choices: Choices = NO_CHOICES


def wide(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


GOOD = {
    "plain": Case(
        "a.csv", b"id,question\n1,a?\n2,b?\n", says="2 questions; UTF-8; comma; question from 'question'"
    ),
    "semicolons": Case("a.csv", b"id;question\n1;a?\n2;b?\n", says="semicolon"),
    "tabs": Case("a.csv", b"id\tquestion\n1\ta?\n2\tb?\n", says="tab"),
    "bars": Case("a.csv", b"id|question\n1|a?\n2|b?\n", says="vertical bar"),
    "tsv": Case("a.tsv", b"id\tquestion\n1\ta?\n2\tb?\n", says="tab"),
    "tsv with one column and commas": Case("a.tsv", b"question\na, b\n", [(None, "a, b")]),
    "upper suffix": Case("A.CSV", b"id,question\n1,a?\n2,b?\n"),
    "excel's separator line": Case("a.csv", b"sep=;\r\nid;question\r\n1;a?\r\n2;b?\r\n", says="semicolon"),
    "excel's separator line with a BOM": Case("a.csv", BOM + b"sep=|\nid|question\n1|a?\n2|b?\n"),
    "BOM": Case("a.csv", BOM + b"id,question\n1,a?\n2,b?\n", says="UTF-8 with a byte order mark"),
    "BOM and a quoted header": Case("a.csv", BOM + b'"id","question"\n1,a?\n2,b?\n'),
    "UTF-16 LE": Case(
        "a.csv", wide("\ufeffid;question\n1;\u00e9\u4e16?\n", "utf-16-le"), [("1", "\u00e9\u4e16?")], "UTF-16"
    ),
    "UTF-16 BE": Case(
        "a.csv", wide("\ufeffid;question\n1;\u00e9\u4e16?\n", "utf-16-be"), [("1", "\u00e9\u4e16?")]
    ),
    "UTF-16 LE without BOM": Case(
        "a.csv", wide("id,question\n1,a?\n2,b?\n", "utf-16-le"), says="without a byte order"
    ),
    "UTF-16 BE without BOM": Case("a.csv", wide("id,question\n1,a?\n2,b?\n", "utf-16-be")),
    "UTF-16 JSONL": Case("a.jsonl", wide('{"q": "gr\u00fcn?"}\r\n', "utf-16"), [(None, "gr\u00fcn?")]),
    "Windows-1252": Case(
        "a.csv",
        "id;question\n1;Wie gro\u00df \u2013 5\u20ac?\n".encode("cp1252"),
        [("1", "Wie gro\u00df \u2013 5\u20ac?")],
        "Windows-1252 by its bytes",
    ),
    "Windows-1252 signs": Case(
        "a.csv",
        f"id;question\n1;{SIGNS}\n".encode("cp1252"),
        [("1", SIGNS)],
        "Windows-1252 by its bytes",
    ),
    "ISO-8859-15": Case(
        "a.csv",
        "id;question\n1;5 \u20ac f\u00fcr \u0152uvre und c\u0153ur?\n".encode("iso8859-15"),
        [("1", "5 \u20ac f\u00fcr \u0152uvre und c\u0153ur?")],
        "ISO-8859-15 by its bytes",
    ),
    "comments below the header": Case(
        "a.csv",
        b'id,question\n# a comment, here\n#1,"# a?"\n## an "odd, one\n2,"two\n# lines?"\n#\n',
        [("#1", "# a?"), ("2", "two\n# lines?")],
        "3 comments skipped",
    ),
    "questions with a sign": Case(
        "a.csv", b"question\n# a comment\n#metoo?\n", [(None, "#metoo?")], "1 comment skipped"
    ),
    "Windows-1252 quotes": Case(
        "a.csv",
        "q\nC\u2019est \u00ab\u202f?".replace("\u202f", "\xa0").encode("cp1252"),
        [(None, "C\u2019est \u00ab\xa0?")],
    ),
    "Windows-1252 JSONL": Case(
        "a.jsonl", '{"q": "caf\u00e9 cr\u00e8me?"}\n'.encode("cp1252"), [(None, "caf\u00e9 cr\u00e8me?")]
    ),
    "cp1251 by option": Case(
        "a.csv",
        "id,question\n1,\u041f\u0440\u0438\u0432\u0435\u0442\n".encode("cp1251"),
        [("1", "\u041f\u0440\u0438\u0432\u0435\u0442")],
        "cp1251",
        Choices(encoding="cp1251"),
    ),
    "shift_jis by option": Case(
        "a.csv",
        "q\n\u65e5\u672c\u8a9e\n".encode("shift_jis"),
        [(None, "\u65e5\u672c\u8a9e")],
        "",
        Choices(encoding="shift_jis"),
    ),
    "UTF-16 LE without BOM in Japanese": Case(
        "a.csv",
        wide("id,q\n1,\u3042\u308c\u306f\u3044\u3064\u3067\u3059\u304b\n", "utf-16-le"),
        [("1", "\u3042\u308c\u306f\u3044\u3064\u3067\u3059\u304b")],
    ),
    "two marks": Case("a.csv", BOM + BOM + b"id,question\n1,a?\n2,b?\n"),
    "files put together": Case("a.jsonl", b'{"id": 1, "q": "a?"}\n' + BOM + b'{"id": 2, "q": "b?"}\n'),
    "columns in German": Case(
        "a.csv", b"Frage;Antwort\na?;1,5 m\nb?;2,5 m\n", [(None, "a?"), (None, "b?")], "question from 'Frage'"
    ),
    "a known name goes before others": Case("a.csv", b"id;Frage;Question\n1;x;a?\n2;y;b?\n"),
    "a question mark in the name": Case("a.csv", b"id,Question?\n1,a?\n2,b?\n"),
    "titles with commas": Case(
        "a.csv", b"FAQ, all\nOf 2024, 10:00\n\nid,question\n1,a?\n2,b?\n", says="2 rows above skipped"
    ),
    "a table of Markdown": Case("a.csv", b"|id|question|\n|---|:---:|\n|1|a?|\n|2|b?|\n"),
    "blank ids": Case("a.csv", b"id,question\n ,a?\n ,b?\n", [(None, "a?"), (None, "b?")]),
    "CRLF": Case("a.csv", b"id,question\r\n1,a?\r\n2,b?\r\n"),
    "no last newline": Case("a.csv", b"id,question\n1,a?\n2,b?"),
    "blank rows": Case("a.csv", b"\n\nid,question\n\n1,a?\n\n,\n2,b?\n,\n\n"),
    "empty columns at the end": Case("a.csv", b"id,question,,\n1,a?,,\n2,b?,,\n"),
    "too many empty cells": Case("a.csv", b"id,question\n1,a?,,\n2,b?\n"),
    "comments": Case(
        "a.csv", b"# exported today, by us\n#\nid,question\n1,a?\n2,b?\n", says="2 rows above skipped"
    ),
    "a title": Case("a.csv", b"FAQ of 2024,\n,\nid,question\n1,a?\n2,b?\n", says="1 row above skipped"),
    "a title alone in its line": Case("a.csv", b"FAQ of 2024\n\nid;question\n1;a?\n2;b?\n"),
    "a title over one column": Case("a.csv", b"Our FAQ\n\nquestion\nx\n", [(None, "x")]),
    "quoted newlines": Case("a.csv", b'id,question\n1,"a\nb\r\nc"\n', [("1", "a\nb\r\nc")]),
    "doubled quotes": Case("a.csv", b'id,question\n1,"say ""hi"""\n', [("1", 'say "hi"')]),
    "quotes inside a bare cell": Case("a.csv", b'id,question\n1,say "hi"\n', [("1", 'say "hi"')]),
    "markdown": Case(
        "a.csv",
        b'question\n"# Title\n\n- **a** | b\n\n```\nx = 1;\n```"\n',
        [(None, "# Title\n\n- **a** | b\n\n```\nx = 1;\n```")],
    ),
    "spaces stay": Case("a.csv", b"id , question \n1,  a  \n", [("1", "  a  ")]),
    "odd separators": Case(
        "a.csv", "q\na\u2028b\x85c\u2029d\x0ce\n".encode(), [(None, "a\u2028b\x85c\u2029d\x0ce")]
    ),
    "formulas stay": Case(
        "a.csv", b"q\n=1+1\n+x\n-y\n@z\n", [(None, "=1+1"), (None, "+x"), (None, "-y"), (None, "@z")]
    ),
    "column names in any form": Case("a.csv", b"Custom-ID;Q_EN\n1;a?\n2;b?\n"),
    "prompt": Case("a.csv", b"ID,PROMPT,lang\n1,a?,de\n2,b?,de\n", says="carried along: lang"),
    "query": Case("a.csv", b"id,Query\n1,a?\n2,b?\n"),
    "input": Case("a.csv", b"id,input\n1,a?\n2,b?\n"),
    "message": Case("a.csv", b"id,message\n1,a?\n2,b?\n"),
    "a column by option": Case("a.csv", b"Nr,Frage\n1,a?\n2,b?\n", choices=Choices("Frage", "Nr")),
    "a column by option in another case": Case(
        "a.csv", b"Nr,Frage\n1,a?\n2,b?\n", choices=Choices("frage", "nr")
    ),
    "an option below a title": Case("a.csv", b"FAQ\nNr;Frage\n1;a?\n2;b?\n", choices=Choices("Frage", "Nr")),
    "one column without a header": Case(
        "a.csv",
        b"Where is it?\nWhat, then, is 5;6|7?\n",
        [(None, "Where is it?"), (None, "What, then, is 5;6|7?")],
        "one column; no header",
    ),
    "prose with one comma in each": Case(
        "a.csv", b"Well, where?\nSo, what?\n", [(None, "Well, where?"), (None, "So, what?")]
    ),
    "one column of an unknown name": Case(
        "a.csv",
        b"Frage\nWo ist es?\nUnd wann?\n",
        [(None, "Wo ist es?"), (None, "Und wann?")],
        "question from 'Frage'",
    ),
    "no header by option": Case(
        "a.csv", b"Hello\nGoodbye\n", [(None, "Hello"), (None, "Goodbye")], "no header", Choices(header=False)
    ),
    "no header and a column's number": Case(
        "a.csv", b"1,a?\n2,b?\n", AB, "", Choices("2", "1", header=False)
    ),
    "a delimiter by option": Case(
        "a.csv", b"id;question,x\n1;a?\n2;b?\n", AB, "", Choices("question,x", delimiter=";")
    ),
    "a delimiter no one guesses": Case("a.csv", b"id~question\n1~a?\n2~b?\n", AB, "", Choices(delimiter="~")),
    "ids with zeros": Case("a.csv", b"id,question\n007,a?\n", [("007", "a?")]),
    "some without id": Case("a.csv", b"id,question\n,a?\n,a?\n", [(None, "a?"), (None, "a?")]),
    "objects": Case("a.jsonl", b'{"id": 1, "question": "a?"}\n\n{"id": "2", "question": "b?"}'),
    "strings": Case("a.jsonl", b'"a?"\r\n"b\\n?"\r\n', [(None, "a?"), (None, "b\n?")]),
    "ndjson": Case("a.ndjson", b'{"id": 1, "q": "a?"}\n{"id": 2, "q": "b?"}\n'),
    "unknown keys": Case(
        "a.jsonl", b'{"id": 1, "q": "a?", "tag": [1]}\n{"id": 2, "q": "b?"}\n', says="carried along: tag"
    ),
    "messages": Case(
        "a.jsonl", b'{"id": "1", "messages": [{"role": "user", "content": "a?"}]}\n', AB[:1], "chat requests"
    ),
    "a batch line": Case(
        "a.jsonl",
        b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", '
        b'"body": {"model": "m", "messages": [{"role": "user", "content": "a?"}]}}',
        AB[:1],
        "chat requests",
    ),
}

BAD = {
    "unknown columns": Case("a.csv", b"nr,sujet\n1,a?\n", says="no column is known .* --column: nr, sujet"),
    "two candidates": Case(
        "a.csv", b"text,question\n1,a?\n", says="several columns .* --column: text, question"
    ),
    "no such column": Case(
        "a.csv", b"id,question\n1,a?\n", says="--column: there is no column 'x'", choices=Choices("x")
    ),
    "no such id column": Case(
        "a.csv",
        b"a,question\n1,a?\n",
        says="--id-column: .* are: a, question",
        choices=Choices(id_column="x"),
    ),
    "a header or a question": Case("a.csv", b"Hello\nGoodbye\n", says="'Hello' could be .* --no-header"),
    "two delimiters": Case(
        "a.csv", b"question,id;q\n", says="comma and semicolon; say which with --delimiter"
    ),
    "an unknown encoding": Case(
        "a.csv", b"q\nx\n", says="--encoding: 'klingon'", choices=Choices(encoding="klingon")
    ),
    "no text encoding": Case(
        "a.csv", b"q\nx\n", says="--encoding: 'base64'", choices=Choices(encoding="base64")
    ),
    "UTF-32": Case("a.csv", "\ufeffq\nx\n".encode("utf-32-le"), says="UTF-32; .*--encoding"),
    "an unknown suffix": Case("a.txt", b"q\nx\n", says="name it .jsonl, .csv or .tsv"),
    "an unknown name in the template": Case(
        "a.csv",
        b"id,q\n1,a\n",
        says="--prompt-template: there is no column 'x'; .*id, q",
        choices=Choices(prompt_template="{x} {q}"),
    ),
    "a template without a column": Case(
        "a.csv", b"q\nx\n", says="names no column", choices=Choices(prompt_template="{{q}}")
    ),
    "a broken template": Case(
        "a.csv", b"q\nx\n", says="--prompt-template: .*braces", choices=Choices(prompt_template="{q")
    ),
    "a template with a format": Case(
        "a.csv", b"q\nx\n", says="only a column's name", choices=Choices(prompt_template="{q!r}")
    ),
    "a prompt that is too long": Case(
        "a.csv",
        b"q\nx\n",
        says="line 2 'the prompt' ",
        choices=Choices(prompt_template="{q}" + "y" * 262_144),
    ),
    "CSV's options on JSONL": Case("a.jsonl", b'"x"\n', says="are for CSV", choices=Choices(header=False)),
    "a column twice": Case("a.csv", b"q,q\nx,y\n", says="line 1 has the column 'q' twice"),
    "empty": Case("a.csv", b"", says="there is no question in it"),
    "only a header": Case("a.csv", b"question\n", says="there is no question in it"),
    "only blanks": Case("a.jsonl", b"\n \n", says="there is no question in it"),
    "an id twice": Case("a.csv", b"id,q\n7,x\n8,y\n7,z\n", says="line 4 'id' '7' stands in line 2 already"),
    "a custom_id twice": Case(
        "a.jsonl",
        b'{"custom_id": "a", "q": "x"}\n{"custom_id": "a", "q": "y"}\n',
        says="line 2 'custom_id' 'a' stands in line 1 already",
    ),
    "missing cells": Case("a.csv", b"id,question\n1\n2,x\n", says="line 2 has 1 cell where the header has 2"),
    "more cells": Case(
        "a.csv", b"id,question\n1,Well, hello\n", says="line 2 has 3 cells where the header has 2"
    ),
    "an open quote": Case(
        "a.csv", b'id,question\n1,x\n2,"open\n3,y\n', says="line 3 is not CSV: unexpected end of data"
    ),
    "text behind a quote": Case("a.csv", b'id,question\n1,"a"b\n2,x\n', says="line 2 is not CSV"),
    "a quote behind a space": Case(
        "a.csv", b'id,question\n1, "a"\n', says="line 2 has a space before a quote"
    ),
    "a bare CR": Case("a.csv", b"id,question\n1,a\rb\n", says="line 2 is not CSV: a CR without LF"),
    "a NUL": Case("a.csv", b"id,question\n1,a\0b\n", says="line 2 holds a NUL"),
    "a NUL in one column": Case("a.csv", b"question\na\0b\n", says="line 2 holds a NUL"),
    "an escaped NUL": Case("a.jsonl", b'{"q": "\\u0000"}\n', says="line 1 'q' holds a NUL"),
    "a lone surrogate": Case(
        "a.jsonl", b'"ok"\n{"question": "\\ud800"}\n', says="line 2 'question' holds a lone surrogate"
    ),
    "a lone surrogate elsewhere": Case(
        "a.jsonl", b'{"q": "x", "tag": {"a": ["\\udc00"]}}\n', says="line 1 'tag' holds a lone"
    ),
    "a lone surrogate in UTF-16": Case(
        "a.csv", wide("\ufeffq\nx\n", "utf-16-le") + b"\x00\xd8\n\x00", says="line 3 is not UTF-16"
    ),
    "a torn UTF-16": Case("a.csv", wide("\ufeffq\nx\n", "utf-16-le") + b"y", says="line 3 is not UTF-16"),
    "mixed encodings": Case(
        "a.csv",
        "q\n\u00e9t\u00e9\n".encode() + b"caf\xe9\n",
        says=r"line 3 is not UTF-8 \(byte 0xe9\); --enc",
    ),
    **{
        f"Mac Roman {text}": Case(
            "a.csv", f"id,q\n1,{text}\n".encode("mac-roman"), says="line 2 is not UTF-8 .*; --encoding says"
        )
        for text in (
            "f\u00fcr",
            "\u00dcbergr\u00f6\u00dfe",
            "\u201cx\u201d?",
            "l\u2019heure",
            "caf\u00e9",
            "gro\u00df",
            "\u00c4nderung",
        )
    },
    "Latin-2": Case("a.csv", "id,q\n1,\u0142\u00f3d\u017a\n".encode("iso8859-2"), says="line 2 is not UTF-8"),
    "\u0153 of ISO-8859-15": Case(
        "a.csv", "id,q\n1,c\u0153ur\n".encode("iso8859-15"), says="line 2 is not UTF-8"
    ),
    "gzip": Case("a.csv", b"\x1f\x8b\x08\0", says="a.csv: is compressed with gzip"),
    "a spreadsheet": Case("a.csv", b"PK\x03\x04\0", says="a.csv: is a ZIP archive"),
    "CR alone": Case("a.csv", b"question\rx\ry\r", says="its lines end with CR alone"),
    "UTF-32 without a mark": Case(
        "a.csv", "q\nx\n".encode("utf-32-le"), says="is UTF-32 without .* --encoding utf-32-le"
    ),
    "Cyrillic": Case(
        "a.csv", "id,q\n1,\u041f\u0440\u0438\u0432\u0435\u0442\n".encode("cp1251"), says="line 2 is not UTF-8"
    ),
    "Polish": Case(
        "a.csv", "id,q\n1,za\u017c\u00f3\u0142\u0107\n".encode("cp1250"), says="line 2 is not UTF-8"
    ),
    "Japanese": Case("a.csv", "id,q\n1,\u65e5\u672c\u8a9e\n".encode("shift_jis"), says="line 2 is not UTF-8"),
    "undefined in Windows-1252": Case("a.csv", b"id,q\n1,a\x81b\n", says="line 2 is not UTF-8"),
    "no JSON": Case("a.jsonl", b'"x"\n{not\n', says="line 2 is not JSON"),
    "a list": Case("a.jsonl", b'"x"\n["x"]\n', says="line 2 is neither a JSON object nor a string"),
    "one list": Case("a.jsonl", b'[{"q": "x"}]', says="is one list of JSON; write one question a line"),
    "JSON over lines": Case("a.jsonl", b'{\n  "q": "x"\n}\n', says="its JSON is spread over lines"),
    "a table as JSONL": Case("a.jsonl", b"id,q\n1,x\n", says="'id,q' is no line of JSONL; name a table .csv"),
    "JSONL as a table": Case("a.csv", b'{"id": 1, "q": "x"}\n', says="is JSON; name it .jsonl"),
    "a list of JSON as a table": Case("a.csv", b'[{"q": "x"}]\n', says="is JSON; name it .jsonl"),
    "several columns in one": Case(
        "a.csv", b"id:question\n1:x?\n2:y?\n", says="'id:question' could be one column or"
    ),
    "HTML": Case("a.csv", b"<table>\n<tr><td>question</td></tr>\n", says="is a page of HTML or XML"),
    "old Excel": Case("a.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(512), says="of old Excel"),
    "a spreadsheet under its name": Case("a.xlsx", b"PK\x03\x04\0", says="a.xlsx: is a ZIP archive"),
    "a key twice": Case("a.jsonl", b'{"q": "lost", "q": "kept"}\n', says="line 1 has 'q' twice"),
    "NaN": Case("a.jsonl", b'{"q": "x", "price": NaN}\n', says="line 1 is not JSON: NaN is no JSON number"),
    "an empty question": Case("a.csv", b"id,question\n1,\n", says="line 2 'question' must not be empty"),
    "a long question": Case(
        "a.csv", b"question\n" + b"x" * 300_000, says="line 2 'question' is longer than 262144 bytes"
    ),
    "a line too long": Case(
        "a.jsonl", b'"x"\n"' + b"x" * 17_000_000 + b'"\n"y"\n{', says="2 lines are wrong"
    ),
    "a cell too long": Case(
        "a.csv", b'q\n"' + b"x\n" * 9_000_000, says="line 2 is longer than .* is a quote missing"
    ),
    "an option of a wrong type": Case(
        "a.jsonl", b'{"q": "x", "temperature": "hot"}\n', says="line 1 'temperature' expected"
    ),
    "options that no call can have": Case(
        "a.jsonl",
        b'{"q": "x", "temperature": 99}\n{"q": "x", "max_tokens": 1' + b"0" * 30 + b"}\n"
        b'{"q": "x", "model": ""}\n{"q": "x", "tools": ["search", "nope"]}\n',
        says="4 lines are wrong.* line 1 'temperature' must be from 0 to 2 line 2 'max_tokens' must be"
        " .* line 3 'model' must not be empty line 4 'tools' has the unknown tool 'nope'; known: search",
        choices=Choices(tools=frozenset({"search"})),
    ),
    "a number beyond all": Case(
        "a.jsonl", b'{"q": "x", "n": 1e' + b"9" * 20 + b"}", says="too large a number"
    ),
    "no tokens": Case(
        "a.jsonl", b'{"q": "x", "max_tokens": 0}\n', says="line 1 'max_tokens' must be from 1 to 10000000"
    ),
    "a conversation": Case(
        "a.jsonl",
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
        says="line 1 'messages' must be one user message",
    ),
    "a batch line that streams": Case(
        "a.jsonl",
        b'{"custom_id": "1", "body": {"stream": true, "messages": []}}\n',
        says="line 1 'body' has 'stream'",
    ),
    "a batch line for another place": Case(
        "a.jsonl",
        b'{"custom_id": "1", "url": "/v1/embeddings", "body": {}}\n',
        says="line 1 'url' must be /v1/chat/completions",
    ),
}


@pytest.mark.parametrize("case", GOOD.values(), ids=GOOD.keys())
def test_the_one_obvious_reading(tmp_path: Path, case: Case) -> None:
    with opened(put(tmp_path, case.name, case.content), case.choices) as found:
        assert [(row.id, row.text) for row in found] == case.rows
        assert found.count == len(case.rows)
        assert case.says in found.note


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_the_one_error(tmp_path: Path, case: Case) -> None:
    with (
        pytest.raises((UnclearError, BadLinesError)) as caught,
        opened(put(tmp_path, case.name, case.content), case.choices),
    ):
        pass
    told = " ".join([str(caught.value), *caught.value.details])
    assert re.search(case.says, told), told
