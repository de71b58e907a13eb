"""`statemark explain` on token files and on chat requests."""

import json

import pytest

from statemark.cli.frame import run
from statemark.models.make_model import make_model


def explain(capsys, *arguments):
    code = run(["explain", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def files(tmp_path):
    def write(*contents):
        paths = []
        for i, content in enumerate(contents):
            path = tmp_path / f"{i}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            paths.append(path)
        return paths

    return write


def test_token_files(capsys, files):
    a, b = files(list(range(1000)), " ".join(map(str, [*range(700), *range(2000, 2100)])))
    code, out, _ = explain(capsys, a, b, "--json")
    got = json.loads(out)
    assert code == 0
    assert (got["first_tokens"], got["second_tokens"], got["shared"], got["first_different"]) == (1000, 800, 700, 700)
    assert (got["lost"], got["computed"]) == (700 - got["reused"], 800 - got["reused"])
    assert 350 <= got["reused"] <= 700
    assert got["reused_when_repeated"] == 799
    assert explain(capsys, a, b, "--json")[1] == out, "equal input, equal bytes"
    lines = explain(capsys, a, b)[1].splitlines()
    assert "shared    700; they part at token 700" in lines
    assert "  second  2000 2001 2002 2003 2004 2005 2006 2007" in lines


@pytest.mark.parametrize(("second", "words"), [(range(500), "all of the second"), (range(1500), "the second goes on")])
def test_one_is_the_beginning_of_the_other(capsys, files, second, words):
    a, b = files(list(range(1000)), {"prompt_token_ids": list(second)})
    assert words in explain(capsys, a, b)[1]


def test_chat_requests_name_the_role_in_which_they_part(capsys, files, tmp_path):
    model = tmp_path / "tiny"
    make_model(model, like="qwen3.5-0.8b", scale="tiny", seed=0, dtype="bfloat16", vocab=None)
    system = {"role": "system", "content": "You are kind. " * 20}

    def chat(question):
        return {"messages": [system, {"role": "user", "content": question}]}

    a, b = files(chat("What is blue?"), chat("What is green?"))
    code, out, err = explain(capsys, a, b, "--model", model, "--json")
    assert code == 0, err
    got = json.loads(out)
    assert got["role"] == "user"
    assert 0 < got["reused"] <= got["shared"] < got["second_tokens"]
    assert "in the message of role user" in explain(capsys, a, b, "--model", model)[1]
    assert explain(capsys, a, b)[0] == 2, "a chat request needs a template"


@pytest.mark.parametrize("content", ["", "hello", {"x": 1}, [1, -5], [[1]], "[1, 2"])
def test_what_is_no_prompt_is_refused_by_name(capsys, files, content):
    a, b = files([1, 2], content)
    code, _, err = explain(capsys, a, b)
    assert code == 2
    assert str(b) in err
    assert "hint:" in err


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_model(path, like="qwen3.5-0.8b", scale="tiny", seed=0, dtype="bfloat16", vocab=None)
    return path


def chat(*contents, **fields):
    roles = ("system", "user", "assistant", "user")
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], **fields}


def test_all_that_a_lookup_says_is_told(capsys, files, model):
    a, b = files(chat("Be kind. " * 20, "What is blue?"), chat("Be kind. " * 20, "What is green?"))
    got = json.loads(explain(capsys, a, b, "-m", model, "--json")[1])
    assert got["veto"] == "unmarked"
    assert (got["first_different"], got["turn"], got["role"]) == (got["shared"], 1, "user")
    assert got["shared"] - 16 < got["page_match"] <= got["shared"]
    assert got["lost"] == got["shared"] - got["reused"] > 0
    out = explain(capsys, a, b, "-m", model)[1]
    assert f"{got['lost']:,} of them for want of a mark: no mark was planned between them" in out
    assert f"pages     {got['page_match']:,} tokens in whole pages" in out


def test_requests_with_other_salts_share_nothing(capsys, files, model):
    a, b = files(chat("Be kind.", "Hello", cache_salt="a"), chat("Be kind.", "Hello", cache_salt="b"))
    got = json.loads(explain(capsys, a, b, "-m", model, "--json")[1])
    assert got["salts_differ"]
    assert (got["reused"], got["page_match"], got["lost"]) == (0, 0, 0)
    assert got["shared"] == got["second_tokens"]
    assert "their salts differ" in explain(capsys, a, b, "-m", model)[1]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "user"}]}, "content is missing"),
        ({"messages": [{"role": "king", "content": "a"}]}, "'king'"),
        (chat("a", "b", max_token=3), "unknown field: 'max_token'"),
        (chat("a", "b", chat_template_kwargs=[1]), "chat_template_kwargs"),
        (chat("a", "b", tools=[1]), "tools"),
    ],
)
def test_what_the_server_would_refuse_is_refused(capsys, files, model, request_, words):
    a, b = files(chat("a", "b"), request_)
    code, out, err = explain(capsys, a, b, "-m", model)
    assert (code, out) == (2, "")
    assert words in err
    assert str(b) in err
    assert "hint:" in err


@pytest.mark.parametrize("content", ["[1.5, 2]", "[true]", "1_0 2", "[" * 100_000, f"[{2**31}]", '{"prompt": "text"}'])
def test_what_is_nearly_a_list_of_ids_is_refused(capsys, files, content):
    a, b = files([1, 2], content)
    code, _, err = explain(capsys, a, b)
    assert code == 2
    assert "neither token ids nor a chat request" in err
