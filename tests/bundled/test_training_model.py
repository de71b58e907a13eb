"""The fast training forward against transformers' module, the delta rule against its own definition."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from training import fused  # noqa: E402
from training.delta_rule import gated_delta_rule  # noqa: E402
from training.model import Model  # noqa: E402
from training.optimizer import orthogonalise  # noqa: E402
from training.shape import Shape  # noqa: E402

SMALL = Shape(
    vocab=96, hidden=32, layers=8, intermediate=48, heads=2, kv_heads=1, head_dim=16,
    key_heads=2, value_heads=4, key_dim=8, value_dim=16, max_positions=256,
)  # fmt: skip


def sequential(q, k, v, g, beta):  # type: ignore[no-untyped-def]
    """The rule as written, token by token, in float64."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    repeat = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(repeat, 2), k.repeat_interleave(repeat, 2)
    state = torch.zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3], dtype=torch.float64)
    out = []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        delta = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * delta[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1)


def inputs(length: int):  # type: ignore[no-untyped-def]
    torch.manual_seed(length)
    q, k = (torch.nn.functional.normalize(torch.randn(2, length, 2, 8), dim=-1) for _ in range(2))
    v, g, beta = torch.randn(2, length, 4, 6), -torch.rand(2, length, 4) * 3, torch.rand(2, length, 4)
    return [x.requires_grad_() for x in (q, k, v, g, beta)]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_chunked_delta_rule_is_the_sequential_one(length: int) -> None:
    x = inputs(length)
    torch.testing.assert_close(gated_delta_rule(*x).double(), sequential(*x), atol=2e-5, rtol=2e-4)


def test_gradients_are_the_sequential_ones() -> None:
    x = inputs(70)
    weight = torch.randn(2, 70, 4, 6)
    ours = torch.autograd.grad((gated_delta_rule(*x) * weight).sum(), x)
    theirs = torch.autograd.grad((sequential(*x) * weight).sum(), x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("length", [1, 3, 16, 77])
def test_compiled_core_is_the_plain_one(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SMALL, key_heads=4)
    if not fused.available(shape):
        pytest.skip("no C compiler")
    torch.manual_seed(length)
    model = Model(shape)
    torch.nn.init.normal_(model.embed)  # a small scale would blow rounding up in the first norm
    ids, weight = torch.randint(0, 96, (3, length)), torch.randn(3, length, 96)
    results = []
    for compiled in (True, False):
        monkeypatch.setattr(fused, "available", lambda _, answer=compiled: answer)
        out = model(ids)
        results.append([out, *torch.autograd.grad((out * weight).sum(), list(model.parameters()))])
    for (name, _), ours, plain in zip([("logits", None), *model.named_parameters()], *results, strict=True):
        assert (ours - plain).abs().max() <= 1e-5 + 3e-4 * plain.abs().max(), name


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_equals_transformers(compiled: bool) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = replace(SMALL, key_heads=4) if compiled else SMALL
    assert not compiled or fused.available(shape) or pytest.skip("no C compiler")
    model = Model(shape)
    for p in model.parameters():
        p.data += torch.randn_like(p) * 0.02  # norms and gates away from their defaults
    config = {k: v for k, v in shape.to_config().items() if k not in ("architectures", "model_type")}
    reference = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**config)).eval()
    result = reference.load_state_dict(model.to_published(), strict=False)
    assert result.missing_keys in ([], ["lm_head.weight"])
    assert result.unexpected_keys == []
    ids = torch.randint(0, 96, (2, 77))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), reference(ids).logits, atol=2e-4, rtol=1e-3)


def test_published_weights_load_back() -> None:
    torch.manual_seed(1)
    first, second = Model(SMALL), Model(SMALL)
    second.load_published(first.to_published())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_shape_comes_back_from_its_configuration() -> None:
    assert Shape.from_config(SMALL.to_config()) == SMALL


def test_later_tokens_change_nothing_before() -> None:
    torch.manual_seed(2)
    model = Model(SMALL)
    ids = torch.randint(0, 96, (1, 64))
    other = ids.clone()
    other[:, 40:] = (other[:, 40:] + 1) % 96
    with torch.no_grad():
        a, b = model(ids), model(other)
    torch.testing.assert_close(a[:, :40], b[:, :40], atol=1e-5, rtol=1e-5)
    assert (a[:, 40:] - b[:, 40:]).abs().max() > 1e-3


@pytest.mark.parametrize("shape", [(16, 16), (24, 16), (16, 40)])
def test_orthogonalise_evens_out_the_singular_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
    assert values.max() < 1.4
    assert values.min() > 0.2
