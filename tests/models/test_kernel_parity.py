"""The NumPy kernels and the compiled ones offer the same names with the same parameters."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from statemark import kernels
from statemark.kernels import reference

STUB = ast.parse((Path(kernels.__file__).parent / "_core.pyi").read_text())

# These measure the machine; they compute nothing that a model uses.
MEASUREMENTS = {"peak_products", "read_memory"}
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def test_every_public_name_is_there() -> None:
    assert set(kernels.__all__) <= set(reference.__all__)
    assert (reference.PAGE, reference.PANEL) == (kernels.PAGE, kernels.PANEL)


@pytest.mark.parametrize("name", CLASSES)
def test_methods_take_the_same_parameters(name: str) -> None:
    ours = getattr(reference, name)
    for node in CLASSES[name].body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name in MEASUREMENTS:
            continue
        expected = [a.arg for a in node.args.args]
        assert list(inspect.signature(getattr(ours, node.name)).parameters) == expected, node.name


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_the_same(name: str) -> None:
    for node in CLASSES[name].body:
        if isinstance(node, ast.FunctionDef) and node.args.defaults and node.name not in MEASUREMENTS:
            signature = inspect.signature(getattr(getattr(reference, name), node.name))
            ours = [p.default for p in signature.parameters.values() if p.default is not inspect.Parameter.empty]
            assert ours == [ast.literal_eval(d) for d in node.args.defaults], node.name
