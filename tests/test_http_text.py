"""Text from tokens: whole characters, cut at the first stop string, nothing ever taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import load

from bench.pair import DRAFT
from drafter_mlx.http.text import Text

TOKENIZER = load(DRAFT)
PROMPT = TOKENIZER.encode("import os\n")


class Plain:
    """A detokenizer whose tokens are numbers of segments."""

    def __init__(self, segments: list[str]) -> None:
        self._segments = segments
        self.last_segment = ""

    def add_token(self, token: int) -> None:
        self.last_segment = self._segments[token]

    def finalize(self) -> None:
        self.last_segment = ""


def told(segments: list[str], stops: list[str]) -> tuple[list[str], Text]:
    text = Text(Plain(segments), (), stops)
    parts = [text.add(token) for token in range(len(segments))]
    return [*parts, text.end()], text


def cut(whole: str, stops: list[str]) -> str:
    """The text up to the stop string that is complete first, character by character."""
    for end in range(len(whole) + 1):
        ended = [stop for stop in stops if whole[:end].endswith(stop)]
        if ended:
            return whole[: end - max(map(len, ended))]
    return whole


segments = st.lists(st.text("ab", max_size=4), max_size=8)
stops = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


@given(segments, stops)
def test_any_split_of_a_text_is_cut_at_the_stop_that_is_complete_first(segments, stops):
    parts, text = told(segments, stops)
    whole = "".join(segments)
    assert "".join(parts) == cut(whole, stops)
    assert text.stopped == any(stop in whole for stop in stops)


@given(segments, stops)
def test_what_is_out_can_belong_to_no_stop_string_whatever_comes(segments, stops):
    text = Text(Plain(segments), (), stops)
    out, whole = "", ""
    for token, segment in enumerate(segments):
        out, whole = out + text.add(token), whole + segment
        if text.stopped:
            break
        kept = len(whole) - len(out)
        assert whole.startswith(out)
        assert all(not stop.startswith(whole[at:]) for stop in stops for at in range(len(out)))
        assert not kept or any(stop.startswith(whole[-kept:]) for stop in stops), "kept in vain"


def test_tokens_are_counted_up_to_the_one_that_completes_a_stop():
    _, text = told(["a", "b", "c", "d"], ["bc"])
    assert text.tokens == [0, 1, 2]


@pytest.mark.parametrize("whole", [" hello é", "你好 🙂!", "  x\n  y", "á́ ñ", "\ufffd!"])
def test_characters_over_several_tokens_come_whole_and_leading_spaces_stay(whole):
    text = Text(TOKENIZER.detokenizer, PROMPT)
    ids = TOKENIZER.encode(whole)
    parts = [text.add(token) for token in ids] + [text.end()]
    assert "".join(parts) == whole
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in whole


def test_half_a_character_is_shown_only_where_the_text_ends_there():
    half = TOKENIZER.encode("🙂")[:-1]
    text = Text(TOKENIZER.detokenizer, PROMPT)
    assert [text.add(token) for token in half] == [""] * len(half)
    assert text.end() == "\ufffd"


@given(st.lists(st.integers(1, 3071).filter(lambda token: token != 189), max_size=30))
def test_any_tokens_give_what_decode_gives(ids):
    """But NUL (189), which mlx-lm's streaming detokenizer writes as Ā."""
    text = Text(TOKENIZER.detokenizer, PROMPT)
    parts = [text.add(token) for token in ids] + [text.end()]
    assert "".join(parts) == TOKENIZER.decode(ids)


def test_an_end_id_is_counted_and_not_shown():
    text = Text(TOKENIZER.detokenizer, PROMPT)
    ids = TOKENIZER.encode("pass")
    shown = "".join([*map(text.add, ids), text.add(0, shown=False), text.end()])
    assert shown == "pass"
    assert text.tokens == [*ids, 0]
