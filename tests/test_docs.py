"""The documents say what the code does."""

import re
from pathlib import Path

import msgspec

from bus import messages
from bus.errors import Code

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
PROTOCOL = (ROOT / "docs/protocol.md").read_text()
SCREEN = 50
"""Lines of a terminal."""


def loop_of(path: str) -> str:
    """What stands between the loop markers of a daemon, without its indentation."""
    body = (ROOT / path).read_text().split("# loop:begin\n")[1].split("    # loop:end")[0]
    return re.sub(r"^    ", "", body, flags=re.MULTILINE).strip()


def test_the_quoted_loops_are_the_code_and_fit_on_a_screen():
    quotes = re.findall(r"<!-- quote: (\S+) -->\n```python\n(.*?)```", ARCHITECTURE, re.DOTALL)
    assert [path for path, _ in quotes] == ["verifier_cuda/daemon.py", "drafter_mlx/daemon.py"]
    for path, quote in quotes:
        assert quote.strip() == loop_of(path), f"docs/architecture.md misquotes {path}"
        assert quote.count("\n") <= SCREEN


def test_the_protocol_names_every_message_with_its_fields_in_order():
    for kind in messages.Message.__subclasses__():
        row = re.search(
            rf"^\| {kind.__struct_config__.tag} \| {kind.__name__} \|.*$", PROTOCOL, re.M
        )
        assert row, kind.__name__
        fields = re.sub(r" \(.*?\)|\[.*?\]", "", row[0].split("|")[4])
        named = [re.split(r"[: ]", field)[0] for field in fields.strip().split(", ")]
        assert named == list(kind.__struct_fields__), kind.__name__


def test_the_protocol_names_the_nested_fields_in_order():
    for kind in (messages.Limits, messages.Sampling, messages.Timings):
        listed = re.search(rf"`{kind.__name__.lower()}` = \[(.*?)\][;.]", PROTOCOL)
        assert listed, kind.__name__
        names = [part.split(" = ")[0] for part in listed[1].split(", ")]
        assert names == [field.name for field in msgspec.structs.fields(kind)]


def test_the_protocol_names_every_error_code():
    for code in Code:
        assert re.search(rf"\b{code}\b", PROTOCOL), code


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
