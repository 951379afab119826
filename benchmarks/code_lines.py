"""Code lines of the Hopper kernels at two commits: before they shared their parts in ``kernels/sm90``, and after.

    python benchmarks/code_lines.py b0b3cf6 HEAD --out benchmarks/results/code-lines.json

Lines of comments and docstrings do not count, nor do declarations, portable code and gradients, nor kernels that are new: sparse,
packed and few rows of latent caches, and blocks that merge where they meet. What only one of the commits has
is listed in ``FILES`` all the same: a file that a commit does not have counts nothing there.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

from _common import PROJECT, parser, print_rows, report

# Files of the kernels, and which part of the earlier lines was to remain.
FILES = {
    "products": (
        2 / 3,
        """_cluster.py f32/_exact_sm90.py f32/_tf32_sm90.py gemm/_gated_sm90.py gemm/_gemm_sm90.py products/_order.py
        products/_product_sm90.py products/_bias_activation.py products/_exact.py products/_gated.py products/_scales.py
        products/_tf32.py sm90/accumulate.py sm90/epilogue.py sm90/hardware.py sm90/mainloop.py sm90/pipeline.py
        sm90/product.py sm90/scheduler.py sm90/split_k.py sm90/tiling.py""",
    ),
    "attention": (
        5 / 6,
        """attention/_attention.py attention/_attention_sm90.py attention/_cache_sm90.py attention/_decode.py
        attention/_decode_f8.py attention/_latent_f8_sm90.py attention/_latent_sm90.py attention/_mainloop_sm90.py
        attention/_merge.py attention/_pages.py attention/_parts.py attention/_producer_sm90.py attention/_ring.py
        attention/_schedule.py attention/_softmax.py attention/_store_sm90.py attention/_tile_sm90.py attention/_wide_sm90.py sm90/softmax.py""",
    ),
}
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines that have more than a comment or a docstring."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for token in tokens if token.type not in _NO_CODE for n in range(token.start[0], token.end[0] + 1)}
    return len(lines - set(_docstring_lines(ast.parse(source))))


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def lines_at(commit: str, files: str) -> int:
    """Code lines of those of the files that a commit has, in whichever room of their family."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit, "kernels/"],
        cwd=PROJECT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    names = {path: re.sub(r"^kernels/(\w+/|)(?:\w+/)*", r"\1", path) for path in listed}
    shown = (
        subprocess.run(["git", "show", f"{commit}:{path}"], cwd=PROJECT, check=True, capture_output=True, text=True)
        for path in listed
        if names[path] in files.split()
    )
    return sum(code_lines(done.stdout) for done in shown)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("before", help="a commit")
    arguments.add_argument("after", help="a commit")
    options = arguments.parse_args()
    results = {}
    for name, (part, files) in FILES.items():
        before, after = (lines_at(commit, files) for commit in (options.before, options.after))
        results[name] = {"before": before, "after": after, "goal": round(part * before)}
    print_rows(("code lines", "before", "after", "goal"), [(name, *row.values()) for name, row in results.items()])
    report("code_lines", results, options.out)


if __name__ == "__main__":
    main()
