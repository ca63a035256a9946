"""A script is sent with the shared steps that it names, and no others."""

from __future__ import annotations

from worker.contract.server.lua import linked

PRELUDE = """-- Shared.
local KEPT = { 'a',
  'b' }
-- Says one.
local function one() return KEPT[1] end

local function two()
  return one() .. KEPT[2]
end

local function three() return 3 end
"""


def text(body: str) -> str:
    (script,) = linked({"prelude": PRELUDE, "a_script": body}).values()
    return script.text


def test_steps_come_with_the_steps_that_they_name_themselves() -> None:
    sent = text("return two()")
    assert all(
        part in sent for part in ("local KEPT", "'b' }", "function one", "function two", "return two()")
    )
    assert "three" not in sent


def test_a_script_that_names_no_step_is_sent_alone() -> None:
    assert text("return 1").strip() == "return 1"


def test_a_word_in_a_longer_word_is_not_a_name() -> None:
    assert "function one" not in text("return someone_else")
