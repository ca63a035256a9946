"""Files, notes, programs and downloads stay in the workspace, and nothing is offered unless switched on."""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aiforge import ChatAgent, ConfigError
from aiforge.core.settings import AIForgeSettings
from aiforge.testing import ScriptedModel, ToolCall
from aiforge.tools import registry
from aiforge.tools.workspace import LARGEST_FILE, Workspace
from tests.aiforge.tools.support import FAMILIES, SECRET, Desk, site


def pdf(text: str) -> bytes:
    """A document of one page that says `text`."""
    drawn = f"BT /F1 18 Tf 20 50 Td ({text}) Tj ET"
    objects = (
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 100]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(drawn)}>>\nstream\n{drawn}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    )
    document, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(document))
        document += f"{number} 0 obj\n{content}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    end = f"trailer\n<</Root 1 0 R/Size 6>>\nstartxref\n{len(document)}\n%%EOF\n"
    return f"{document}xref\n0 6\n0000000000 65535 f \n{table}{end}".encode()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


class TestOffered:
    def test_nothing_is_unless_switched_on(self) -> None:
        settings = AIForgeSettings.load()
        always = {"calculator", "unit_converter", "current_time", "ask_human"}
        assert registry.names(settings) == registry.names() == always
        with pytest.raises(ConfigError, match="'run_command' is switched off; the setting COMMAND_TOOLS"):
            registry.resolve(["run_command"], settings)
        with pytest.raises(ConfigError, match="switched off"):
            registry.resolve(["read_file"])

    @pytest.mark.parametrize("switch", FAMILIES)
    def test_each_family_has_its_own_switch(self, switch: str) -> None:
        settings = AIForgeSettings.load(**{switch: True, "WEB_SEARCH_URL": "http://127.0.0.1:1/search"})
        gained = registry.names(settings) - registry.names()
        assert gained
        assert {tool.name for tool in registry.resolve(sorted(gained), settings)} == gained
        others = AIForgeSettings.load(**{name: True for name in FAMILIES if name != switch})
        assert not gained & registry.names(others)


class TestPaths:
    """Z4: whichever way a path tries to leave."""

    @pytest.mark.parametrize(
        "path",
        [
            "../secret.txt",
            "a/../../secret.txt",
            "./../secret.txt",
            "/etc/passwd",
            "//etc/passwd",
            "~/secret.txt",
            "../work-secret/secret.txt",
            "..",
            ".",
            "",
            "a\0b",
            "..\\secret.txt",
            "link.txt",
            "folder/secret.txt",
            "folder/../link.txt",
            "pipe",
        ],
    )
    def test_a_path_that_leads_outside_or_is_no_file(self, desk: Desk, path: str) -> None:
        (desk.root / "link.txt").symlink_to(desk.outside / "secret.txt")
        (desk.root / "folder").symlink_to(desk.outside / "work-secret")
        os.mkfifo(desk.root / "pipe")
        for tool, more in (
            ("read_file", {}),
            ("write_code", {"text": "x"}),
            ("edit_code", {"old": "secret", "new": "x"}),
        ):
            with pytest.raises(ValueError, match=r".") as refused:
                desk.use(tool, path=path, **more)
            assert str(desk.root) not in str(refused.value)
        assert (desk.outside / "secret.txt").read_text() == SECRET
        assert (desk.outside / "work-secret" / "secret.txt").read_text() == SECRET

    @pytest.mark.parametrize("path", ["..", "/", "/etc", "folder", "../work-secret"])
    def test_a_folder_outside_is_not_listed(self, desk: Desk, path: str) -> None:
        (desk.root / "folder").symlink_to(desk.outside / "work-secret")
        with pytest.raises(ValueError, match=r"."):
            desk.use("list_files", path=path)

    def test_a_folder_that_is_swapped_for_a_link_meanwhile(self, desk: Desk) -> None:
        """Half of the time `swap` is a link to a folder outside: no read may ever follow it."""
        workspace = Workspace(desk.root)
        kept = desk.root / "kept"
        kept.mkdir()
        (kept / "secret.txt").write_text("mine")
        swap, away = desk.root / "swap", desk.root / "away"
        ended = threading.Event()

        def swapping() -> None:
            while not ended.is_set():
                with suppress(OSError):  # a write made the folder anew
                    kept.rename(swap)
                    swap.rename(kept)
                shutil.rmtree(swap, ignore_errors=True)
                with suppress(OSError):  # likewise
                    away.symlink_to(desk.outside / "work-secret")
                    away.rename(swap)
                    swap.unlink()
                away.unlink(missing_ok=True)

        thread = threading.Thread(target=swapping)
        thread.start()
        seen, until = set(), time.monotonic() + 1.0
        try:
            while time.monotonic() < until:
                with suppress(ValueError):
                    seen.add(workspace.read("swap/secret.txt"))
                with suppress(ValueError):
                    workspace.write("swap/secret.txt", b"mine")
        finally:
            ended.set()
            thread.join(10)
        assert seen <= {b"mine"}
        assert (desk.outside / "work-secret" / "secret.txt").read_text() == SECRET
        assert sorted(os.listdir(desk.outside / "work-secret")) == ["secret.txt"]  # noqa: PTH208  # names


class TestFiles:
    def test_write_read_edit_and_list(self, desk: Desk) -> None:
        desk.use("write_code", path="src/a.py", text="one\ntwo\nthree\n")
        assert desk.use("read_file", path="src/a.py") == "one\ntwo\nthree\n"
        assert desk.use("read_file", path="src/a.py", first_line=2, lines=1) == "two\n"
        desk.use("edit_code", path="src/a.py", old="two", new="2")
        assert (desk.root / "src/a.py").read_text() == "one\n2\nthree\n"
        assert desk.use("list_files") == "src/"
        assert desk.use("list_files", path="src") == "a.py"

    @pytest.mark.parametrize("old", ["four", "e", ""])
    def test_an_edit_needs_one_place(self, desk: Desk, old: str) -> None:
        desk.use("write_code", path="a", text="one three")
        with pytest.raises(ValueError, match="exactly once"):
            desk.use("edit_code", path="a", old=old, new="x")

    def test_a_pdf_gives_its_text(self, desk: Desk) -> None:
        (desk.root / "paper.pdf").write_bytes(pdf("Phase stability"))
        assert desk.use("read_file", path="paper.pdf") == "Phase stability"

    def test_a_damaged_pdf_and_other_bytes_are_told(self, desk: Desk) -> None:
        (desk.root / "paper.pdf").write_bytes(b"%PDF-1.4\nnothing")
        with pytest.raises(ValueError, match="PDF that cannot be read"):
            desk.use("read_file", path="paper.pdf")
        (desk.root / "a.bin").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ValueError, match="not a text file"):
            desk.use("read_file", path="a.bin")

    def test_a_file_that_is_too_large(self, desk: Desk) -> None:
        with (desk.root / "large").open("wb") as file:
            file.truncate(LARGEST_FILE + 1)
        with pytest.raises(ValueError, match="at most"):
            desk.use("read_file", path="large")

    def test_an_agent_uses_them(self, desk: Desk) -> None:
        tools = registry.resolve(["write_code", "read_file"], desk.settings)
        model = ScriptedModel(
            replies=[
                ToolCall("write_code", {"path": "a.md", "text": "hello"}),
                ToolCall("read_file", {"path": "../secret.txt"}),
                "done",
            ]
        )
        response = ChatAgent(llm=model, tools=tools).chat("Write it down")
        assert (desk.root / "a.md").read_text() == "hello"
        assert response.tool_calls[0].output == "a.md: 5 characters written"
        assert "leads out of the workspace" in (response.tool_calls[1].output or "")


class TestNotes:
    def test_a_note_outlives_and_grows(self, desk: Desk) -> None:
        assert desk.use("list_experiences") == "(there are no notes)"
        desk.use("write_experience", name="alloys", text="# Alloys")
        desk.use("write_experience", name="alloys.md", text="More.", append=True)
        desk.use("edit_experience", name="alloys", old="More", new="Enough")
        assert desk.use("read_experience", name="alloys") == "# Alloys\n\nEnough."
        assert desk.use("list_experiences") == "alloys"
        assert (desk.root / "experiences/alloys.md").is_file()

    @pytest.mark.parametrize("name", ["../secret", "a/b", "", ".hidden", "/etc/passwd", "a\0"])
    def test_a_name_is_no_path(self, desk: Desk, name: str) -> None:
        with pytest.raises(ValueError, match="name"):
            desk.use("write_experience", name=name, text="x")


class TestCommands:
    def test_a_program_runs_in_the_workspace(self, desk: Desk) -> None:
        (desk.root / "a.txt").write_text("needle\n")
        assert desk.use("run_command", command="grep -rn needle .") == "exit code 0\n./a.txt:1:needle\n"
        assert desk.use("run_command", command="cat 'no such'").startswith("exit code 1\n")

    @pytest.mark.parametrize(
        "command",
        [
            "rm a.txt",
            "/bin/cat a.txt",
            "./cat a.txt",
            "sh -c ls",
            "",
            "cat /etc/passwd",
            "cat ../secret.txt",
            "cat a/../../secret.txt",
            "cat ~/secret.txt",
            "grep --file=/etc/passwd x",
            "grep -f/etc/passwd x",
            "grep -f../secret.txt x",
            "cat link.txt",
            "cat folder/secret.txt",
            "grep --file=link.txt x",
            "grep -flink.txt x",
            "cat a.txt; ls",
            "cat a.txt | wc",
            "cat a.txt > b",
            "cat $HOME",
            "cat `ls`",
            "cat a.txt & ls",
            "cat 'a",
            "cat a\nls",
        ],
    )
    def test_what_is_refused(self, desk: Desk, command: str) -> None:
        (desk.root / "a.txt").write_text("a")
        (desk.root / "link.txt").symlink_to(desk.outside / "secret.txt")
        (desk.root / "folder").symlink_to(desk.outside / "work-secret")
        with pytest.raises(ValueError, match=r"."):
            desk.use("run_command", command=command)

    @pytest.mark.parametrize(
        "command",
        [
            "grep -R secret .",
            "grep -nRi secret .",
            "grep -e -- -R .",
            "grep --dereference-recursive secret .",
            "grep --dereference-rec secret .",
            "ls -L",
            "ls -lLR .",
            "ls -RH .",
            "ls --dereference -R",
            "ls --deref -R",
            "diff -r . other",
            "diff -rN . other",
            "diff . other",
            "diff --recursive . other",
            "wc --files0-from=names",
            "wc --files0-from names",
            "wc --f=names",
            "grep -r secret .",
            "ls -laR .",
            "cat link.txt",
        ],
    )
    def test_no_program_follows_a_link_or_a_list_of_names(self, desk: Desk, command: str) -> None:
        (desk.root / "link.txt").symlink_to(desk.outside / "secret.txt")
        (desk.root / "folder").symlink_to(desk.outside / "work-secret")
        (desk.root / "names").write_bytes(b"../work-secret/secret.txt\0")
        (desk.root / "other").mkdir()
        (desk.root / "other" / "link.txt").write_text("x")
        (desk.root / "other" / "folder").mkdir()
        try:
            output = desk.use("run_command", command=command)
        except ValueError:
            return
        seen = output.replace("work-secret", "").replace(str(desk.outside / "secret.txt"), "")
        assert SECRET not in output
        assert "secret.txt" not in seen

    @pytest.mark.parametrize(
        ("command", "output"),
        [
            ("ls -la", "a.txt"),
            ("head -1 a.txt", "one:1"),
            ("tail -n 1 a.txt", "two:2"),
            ("grep -in -C3 TWO a.txt", "2:two:2"),
            ("grep --line-number --max-count=1 . a.txt", "1:one:1"),
            ("diff -u a.txt b.txt", "+three:3"),
            ("cut -d: -f2 a.txt", "1\n2"),
            ("wc --lines a.txt", "2 a.txt"),
        ],
    )
    def test_the_usual_options_work(self, desk: Desk, command: str, output: str) -> None:
        (desk.root / "a.txt").write_text("one:1\ntwo:2\n")
        (desk.root / "b.txt").write_text("one:1\nthree:3\n")
        assert output in desk.use("run_command", command=command)

    def test_a_program_sees_no_key(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
        desk = Desk(tmp_path, COMMANDS=["env"])
        output = desk.use("run_command", command="env")
        assert "sk-canary" not in output
        assert "PATH=" in output

    def test_a_program_that_hangs_or_floods_is_ended(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, COMMANDS=["sleep", "yes"], TOOL_TIMEOUT=0.3)
        with pytest.raises(ValueError, match=r"did not end within 0\.3 s"):
            desk.use("run_command", command="sleep 60")
        assert desk.use("run_command", command="yes").endswith("bytes of output]")


class TestDownloads:
    def test_a_file_lands_in_the_workspace(self, tmp_path: Path) -> None:
        desk = Desk(tmp_path, PRIVATE_DOWNLOADS=True)
        with site(_answer) as url:
            assert (
                desk.use("download_file_tool", url=f"{url}/data", path="in/data.txt")
                == "in/data.txt: 4 bytes"
            )
            assert (desk.root / "in/data.txt").read_bytes() == b"data"
            with pytest.raises(ValueError, match="answers 404"):
                desk.use("download_file_tool", url=f"{url}/gone", path="x")
            with pytest.raises(ValueError, match="more than"):
                desk.use("download_file_tool", url=f"{url}/flood", path="x")
            with pytest.raises(ValueError, match="leads out"):
                desk.use("download_file_tool", url=f"{url}/data", path="../x")

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"])
    def test_an_address_that_is_not_public(self, desk: Desk, host: str) -> None:
        reached: list[str] = []

        async def answer(request: web.Request) -> web.StreamResponse:
            reached.append(request.path)
            return web.Response(text="internal")

        with site(answer) as url:
            port = url.rpartition(":")[2]
            with pytest.raises(ValueError, match="cannot be fetched"):
                desk.use("download_file_tool", url=f"http://{host}:{port}/", path="x")
        assert reached == []

    @pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "/etc/passwd"])
    def test_only_the_web(self, desk: Desk, url: str) -> None:
        with pytest.raises(ValueError, match="not an http or https address"):
            desk.use("download_file_tool", url=url, path="x")


async def _answer(request: web.Request) -> web.StreamResponse:
    answers: dict[str, Any] = {"/data": b"data", "/flood": b"x" * (LARGEST_FILE + 1)}
    if request.path not in answers:
        return web.Response(status=404)
    return web.Response(body=answers[request.path])
