"""A script is sent with the shared steps that it names, and no others."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

from worker.contract.server.lua import linked, load_scripts, steps_of

SCRIPTS = files("worker.contract").joinpath("scripts")
LATER = """-- Shared.
local function two()
  -- Says both.
  return one() .. KEPT[2] -- Of three.
end

local function three() return 3 end
"""
EARLIER = """-- Shared, too.
local KEPT = { 'a',
  'b' }
-- Says one.
local function one() return KEPT[1] end
"""


def text(body: str) -> str:
    (script,) = linked({"a_script": body}, [LATER, EARLIER]).values()
    return script.text


def test_steps_come_behind_those_that_they_name_themselves_whatever_file_they_stand_in() -> None:
    assert text("return two()") == (
        "local KEPT = { 'a',\n  'b' }\nlocal function one() return KEPT[1] end\n"
        "local function two()\n  return one() .. KEPT[2]\nend\nreturn two()\n"
    )


def test_a_script_that_names_no_step_is_sent_alone() -> None:
    assert text("return 1") == "return 1\n"


def test_what_only_looks_like_a_name_is_none() -> None:
    assert text("-- Of one.\nreturn someone_else .. 'one -- two'") == "return someone_else .. 'one -- two'\n"


def steps() -> list[tuple[str, str]]:
    files_of = SCRIPTS.joinpath("steps").iterdir()
    return [step for path in files_of for step in steps_of(path.read_text(encoding="utf-8"))]


def test_each_step_has_one_home_and_a_script_that_needs_it() -> None:
    names = Counter(name for name, _ in steps())
    assert [name for name, times in names.items() if times > 1] == []
    sent = {name for script in load_scripts().values() for name, _ in steps_of(script.text)}
    assert names.keys() - sent == set()


def test_nothing_else_is_called_like_a_step_so_that_none_is_sent_for_nothing() -> None:
    declared = re.compile(r"local (?!function)([\w, ]+)|for ([\w, ]+?) (?:in|=)|function ?(\w*)\(([\w, ]*)\)")
    for script in load_scripts().values():
        names = re.findall(r"\w+", " ".join(map(" ".join, declared.findall(script.text))))
        twice = [name for name, _ in steps() if names.count(name) > 1]
        assert twice == [], script.name
