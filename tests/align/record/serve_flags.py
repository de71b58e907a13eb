"""Writes src/statemark/align/flag_table.py from the parser of the vLLM that is installed beside it.

python tests/align/record/serve_flags.py > src/statemark/align/flag_table.py
"""

from __future__ import annotations

import sys
import textwrap
from typing import Any

HEADER = '''\
"""Every flag of `vllm serve` 0.32 and how many values it takes. Written by tests/align/record/serve_flags.py.

Kept so that a pasted command is read whole: a flag that the checks don't need is passed over with its value, and a
flag that vLLM doesn't know is an error instead of silence.
"""

from __future__ import annotations

'''


def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


def tables() -> dict[str, list[str]]:
    """Long names by arity, and short names with the long one that they stand for."""
    out: dict[str, list[str]] = {"SWITCHES": [], "ONE_VALUE": [], "MANY_VALUES": [], "SHORT": []}
    for action in parser()._actions:
        if not action.option_strings:
            continue
        long = next(o for o in action.option_strings if o.startswith("--"))
        arity = "SWITCHES" if action.nargs == 0 else "MANY_VALUES" if action.nargs == "+" else "ONE_VALUE"
        for option in action.option_strings:
            if option.startswith("--"):
                out[arity].append(option[2:])
            else:
                out["SHORT"].append(f"{option[1:]}={long[2:]}")
    return {name: sorted(values) for name, values in out.items()}


def main() -> None:
    sys.stdout.write(HEADER)
    for number, (name, values) in enumerate(tables().items()):
        body = textwrap.fill(
            " ".join(values), width=116, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )
        sys.stdout.write(f'{"" if number == 0 else chr(10)}{name} = """\n{body}\n"""\n')


if __name__ == "__main__":
    main()
