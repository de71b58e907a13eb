"""The runtime: which instruction set, how many threads, several at once, after a fork, at rest."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import statemark.kernels as kernels
from statemark.kernels import Runtime, reference
from tests.kernels.inputs import ISAS, matrix, uniform


def answer(rt: Runtime) -> bytes:
    out = np.zeros((60, 500), np.float32)
    rt.linear(uniform(60, 300, seed=1), matrix(500, 300, "bfloat16", seed=2), out)
    return out.tobytes()


def test_public_names_are_those_of_the_compiled_module_and_the_reference() -> None:
    for name in kernels.__all__:
        assert hasattr(kernels, name)
        assert hasattr(reference, name), name


def test_the_portable_kernels_are_always_there_and_the_best_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATEMARK_ISA", raising=False)
    assert "portable" in ISAS
    assert Runtime().isa == ISAS[0]
    assert not ISAS[0].endswith("emulated")


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_chooses_and_the_argument_wins(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEMARK_ISA", isa)
    assert Runtime(1).isa == isa
    assert Runtime(1, "portable").isa == "portable"


def test_unknown_choices_are_refused_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'sse9' is not available; .* offer: " + ", ".join(ISAS)):
        Runtime(1, "sse9")
    monkeypatch.setenv("STATEMARK_ISA", "mmx")
    with pytest.raises(ValueError, match="'mmx'"):
        Runtime(1)
    for threads in (-1, 1025):
        with pytest.raises(ValueError, match=f"got {threads}"):
            Runtime(threads, "portable")


def test_no_threads_named_means_all_cores() -> None:
    assert Runtime().threads == len(os.sched_getaffinity(0))
    assert Runtime(3).threads == 3


@pytest.mark.parametrize("isa", ISAS)
def test_many_runtimes_and_many_callers_get_the_same_bits(isa: str) -> None:
    expected = answer(Runtime(1, isa))
    shared = Runtime(2, isa)
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda i: answer(shared if i % 2 else Runtime(1 + i % 3, isa)), range(24))
        assert all(got == expected for got in answers)


def test_the_callers_float_mode_neither_matters_nor_changes() -> None:
    # subnormal inputs count as zero in every thread, and the caller's arithmetic still has them afterwards
    rt, tiny = Runtime(2), np.full((40, 64), 1e-40, np.float32)
    m = kernels.Matrix(500, 64, "float32")
    m.fill(0, np.ones((500, 64), np.float32))
    out = np.ones((40, 500), np.float32)
    rt.linear(tiny, m, out)
    assert not out.any()
    assert np.float32(1e-40) * np.float32(0.5) > 0.0


def test_a_forked_child_can_use_the_parents_runtime() -> None:
    rt = Runtime(2)
    expected = answer(rt)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"same" if answer(rt) == expected and answer(Runtime(2)) == expected else b"other")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 10) == b"same"
    os.close(read)
    os.close(write)
    assert answer(rt) == expected


def test_idle_threads_use_no_processor() -> None:
    rt = Runtime(4)
    answer(rt)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.parametrize("where", ["before the tasks", "in the tasks"])
def test_memory_that_cannot_be_had_is_an_error_and_the_runtime_goes_on(where: str) -> None:
    code = """
import resource
import sys
import numpy as np
from statemark.kernels import Matrix, Runtime
rt, m = Runtime(2), Matrix(32, 2)
m.fill(0, np.ones((32, 2), np.float32))
x, out = np.ones((2048, 2), np.float32), np.zeros((2048, 32), np.float32)
if sys.argv[1] == "in the tasks":  # the shared scratch is there then; that of the threads is not
    rt.linear(x[:48], m, out[:48])
used = int(open("/proc/self/statm").read().split()[0]) * 4096
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), hard))
try:
    rt.linear(x, m, out)
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    rt.linear(x, m, out)
    print("refused once,", "then", out.min(), out.max())
"""
    # Which thread took a task of the first call, and so has its scratch, isn't ours to say: not every try is refused.
    for _ in range(1 if where == "before the tasks" else 40):
        done = subprocess.run([sys.executable, "-c", code, where], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        if done.stdout:
            break
    assert done.stdout.strip() == "refused once, then 2.0 2.0"


@pytest.mark.skipif("amx_bf16" not in ISAS, reason="needs a processor with AMX")
def test_tiles_that_the_system_refuses_are_not_used() -> None:
    # Linux refuses them where a signal stack is too small to save them
    code = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
small = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(small), None) == 0
from statemark.kernels import Runtime
print(Runtime(1).isa)
try:
    Runtime(1, "amx_bf16")
except ValueError as error:
    print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "STATEMARK_ISA"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    chosen, refusal = done.stdout.splitlines()
    assert chosen == "avx512_bf16"
    assert "'amx_bf16' is not available" in refusal
