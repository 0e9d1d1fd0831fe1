"""When an output ends, and which of its text is final: with stop strings, stop tokens and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.model.tokenizer import ByteTokenizer, Tokenizer
from minillm.request import SamplingParams
from minillm.stopping import OutputText

EOS = 256


class PieceTokenizer(Tokenizer):
    """Tokens of several bytes each. Counts how often one is read."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = [piece.encode() for piece in pieces]
        self.vocab_size = len(pieces)
        self.eos_token_ids = frozenset()
        self.reads = 0

    def encode(self, text):
        raise NotImplementedError

    def apply_chat_template(self, messages):
        raise NotImplementedError

    def token_bytes(self, token_id):
        self.reads += 1
        return self.pieces[token_id]


def output(pieces: list[str] | None = None, **params) -> OutputText:
    tokenizer = ByteTokenizer() if pieces is None else PieceTokenizer(pieces)
    return OutputText(SamplingParams(**{"max_tokens": 100, **params}), frozenset({EOS}), tokenizer)


def stream(text: OutputText, token_ids) -> tuple[list[str], str | None]:
    """What becomes final with each token, and why the output ended; tokens after that are not pushed."""
    deltas = []
    for token_id in token_ids:
        reason = text.push(token_id)
        deltas.append(text.take())
        if reason is not None:
            return deltas, reason
    return deltas, None


# Stop strings


def test_text_streams_token_by_token():
    assert stream(output(), b"abc") == (["a", "b", "c"], None)


def test_a_stop_string_across_token_borders_is_cut_off_with_what_follows():
    text = output(["answer\nUs", "er", ": more"], stop="\nUser:")
    assert stream(text, range(3)) == (["answer", "", ""], "stop")
    assert text.stop_reason == "\nUser:"
    assert text.num_tokens == 3


def test_a_stop_string_inside_one_token_is_cut_off():
    assert stream(output(["keep END drop"], stop=" END"), [0]) == (["keep"], "stop")


def test_what_may_become_a_stop_string_is_held_back_and_released_when_it_does_not():
    assert stream(output(stop="aab"), b"aaaXab") == (["", "", "a", "aaX", "", "ab"], None)


def test_held_back_text_is_released_at_the_end():
    assert stream(output(stop="xyz", max_tokens=3), b"axy") == (["a", "", "xy"], "length")
    assert stream(output(stop="xyz"), [*b"axy", EOS]) == (["a", "", "", "xy"], "stop")


def test_the_stop_string_that_is_complete_first_counts():
    text = output(["abcdef"], stop=("bcde", "cd"))
    assert stream(text, [0]) == (["ab"], "stop")
    assert text.stop_reason == "cd"


def test_of_stop_strings_complete_at_once_the_first_listed_counts():
    assert stream(output(["abc"], stop=("c", "bc")), [0]) == (["ab"], "stop")
    assert stream(output(["abc"], stop=("bc", "c")), [0]) == (["a"], "stop")


def test_a_stop_string_may_hold_characters_of_several_tokens():
    assert stream(output(stop="é€"), "aé€b".encode())[0] == ["a", "", "", "", "", ""]


def cut(text: str, lengths: list[int]) -> list[str]:
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    return [*filter(None, [*pieces, text])]


texts = st.text("ab", max_size=30)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5), max_size=3)
lengths = st.lists(st.integers(1, 4), max_size=20)


@given(texts, stop_strings, lengths)
def test_the_text_does_not_depend_on_where_tokens_end(text, stops, lengths):
    pieces = cut(text, lengths)
    read = output(pieces, stop=stops)
    deltas, reason = stream(read, range(len(pieces)))
    read.close()
    delivered = "".join([*deltas, read.take()])
    matches = [(end, stop) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)]
    end, stop = matches[0] if matches else (len(text), "")
    assert (delivered, reason, read.stop_reason) == (
        (text[: end - len(stop)], "stop", stop) if matches else (text, None, None)
    )


@given(texts, stop_strings, lengths)
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops, lengths):
    pieces = cut(text, lengths)
    deltas, _ = stream(output(pieces, stop=stops), range(len(pieces)))
    if any(stop in text for stop in stops):
        return
    undecided = [text[start:] for start in range(len(text)) if any(stop.startswith(text[start:]) for stop in stops)]
    assert text == "".join(deltas) + (undecided[0] if undecided else "")


# Stop tokens


def test_the_end_of_text_stops_and_leaves_no_text():
    text = output()
    assert stream(text, [*b"ab", EOS, *b"c"]) == (["a", "b", ""], "stop")
    assert text.stop_reason is None
    assert text.num_tokens == 3


def test_ignore_eos_generates_past_the_end_of_text():
    assert stream(output(ignore_eos=True), [*b"ab", EOS, *b"c"]) == (["a", "b", "", "c"], None)


def test_a_stop_token_stops_is_left_out_of_the_text_and_is_the_reason():
    text = output(stop_token_ids=(ord("b"),))
    assert stream(text, b"abc") == (["a", ""], "stop")
    assert text.stop_reason == ord("b")


def test_ignore_eos_does_not_ignore_a_stop_token():
    text = output(ignore_eos=True, stop_token_ids=(EOS,))
    assert stream(text, [EOS]) == ([""], "stop")
    assert text.stop_reason == EOS


# Limits


def test_max_tokens_ends_by_length():
    text = output(max_tokens=2)
    assert stream(text, b"abc") == (["a", "b"], "length")
    assert text.stop_reason is None


@pytest.mark.parametrize("last", [EOS, ord("!"), ord("?")])
def test_a_stop_on_the_last_token_is_a_stop(last):
    assert stream(output(max_tokens=2, stop="!", stop_token_ids=(ord("?"),)), [ord("a"), last]) == (["a", ""], "stop")


@pytest.mark.parametrize("ending", [EOS, ord("!"), ord("?")])
def test_stops_among_the_first_min_tokens_do_not_count(ending):
    text = output(min_tokens=2, stop="!", stop_token_ids=(ord("?"),))
    assert stream(text, [ending, ending, ord("a"), ending])[1] == "stop"
    assert text.num_tokens == 4


def test_a_stop_string_that_began_among_the_first_min_tokens_counts():
    assert stream(output(min_tokens=2, stop="abc"), b"abc") == (["", "", ""], "stop")


def test_a_stop_string_that_did_not_count_stays_in_the_text():
    assert stream(output(min_tokens=2, stop="ab"), b"abx") == (["", "ab", "x"], None)
    assert stream(output(min_tokens=2, stop=("b", "bcd")), b"abcx") == (["a", "", "", "bcx"], None)


def test_an_unfinished_character_waits_for_its_bytes_and_is_replaced_at_the_end():
    euro = "€".encode()
    assert stream(output(), euro) == (["", "", "€"], None)
    assert stream(output(max_tokens=2), euro) == (["", "\ufffd"], "length")
    assert stream(output(), [*euro[:2], EOS]) == (["", "", "\ufffd"], "stop")


# Without a tokenizer, and the cost of a token


def test_without_a_tokenizer_tokens_are_counted_and_compared():
    params = SamplingParams(max_tokens=3, stop_token_ids=(7,))
    assert stream(OutputText(params), [1, 2, 3]) == (["", "", ""], "length")
    assert stream(OutputText(params), [1, 7]) == (["", ""], "stop")
    assert stream(OutputText(params, frozenset({9})), [9]) == ([""], "stop")


def test_stop_strings_need_a_tokenizer():
    with pytest.raises(ValueError, match=r"the stop string '\\n' cannot be found in token ids alone"):
        OutputText(SamplingParams(stop="\n"))


def test_each_token_is_read_once_and_little_is_kept():
    tokenizer = PieceTokenizer(["ab"])
    text = OutputText(SamplingParams(max_tokens=5000, stop="abc"), frozenset(), tokenizer)
    for _ in range(4000):
        text.push(0)
        assert len(text.take()) <= 2
    assert tokenizer.reads == 4000
