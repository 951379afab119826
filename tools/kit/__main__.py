"""``python -m tools.kit BUNDLE``: make a folder that tests and measures a bundle on a machine without a network."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from aot.cli.main import run
from aot.cli.options import add_bundle_argument
from aot.cli.report import human_size, print_json
from aot.errors import UsageError
from aot.hosts import parse_hosts


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.kit", description=__doc__)
    add_bundle_argument(parser)
    add = parser.add_argument
    add("--out", type=Path, default=Path("kit"), metavar="DIR", help="where the kit goes (default: kit)")
    add("--host", action="append", default=[], metavar="CPU", help="x86_64 or aarch64 (default: this machine's)")
    add(
        "--python",
        default=f"{sys.version_info[0]}.{sys.version_info[1]}",
        metavar="VERSION",
        help="Python of the machine it runs on, such as 3.12 (default: this one's)",
    )
    add("--project", type=Path, default=Path(), metavar="DIR", help="folder with tests/ and benchmarks/ (default: .)")
    add("--include", type=Path, action="append", default=[], metavar="PATH", help="more of the project; repeatable")
    add("--step", action="append", default=[], metavar="NAME=COMMAND", help="one more thing to run; repeatable")
    add("--require", action="append", default=[], metavar="REQUIREMENT", help="one more wheel; repeatable")
    add("--no-cpp-demo", action="store_true", help="leave out cpp_demo/ and the bundle that is built for it")
    add("--wheelhouse", type=Path, metavar="DIR", help="where the wheels lie, for machines without a network")
    add("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(execute=execute)
    return parser


def execute(arguments: argparse.Namespace) -> int:
    import platformdirs

    from .make import REQUIREMENTS, KitSettings, Step, make_kit

    hosts = parse_hosts(arguments.host, (2, 28))
    if len(hosts) != 1:
        raise UsageError("a kit is for one host", hint="make one for each")
    settings = KitSettings(
        bundle=arguments.bundle,
        project=arguments.project,
        out=arguments.out,
        host=hosts[0],
        python=arguments.python,
        requirements=(*REQUIREMENTS, *arguments.require),
        include=tuple(arguments.include),
        steps=tuple(Step.parse(text) for text in arguments.step),
        wheelhouse=arguments.wheelhouse,
        cpp_demo=not arguments.no_cpp_demo,
        cache=Path(platformdirs.user_cache_dir("cute-aot")),
    )
    kit = make_kit(settings)
    size = sum(path.stat().st_size for path in kit.rglob("*") if path.is_file())
    if arguments.json:
        print_json({"kit": str(kit), "bytes": size})
    else:
        command = shlex.join(["python3", str(kit / "run.py")])
        print(f"{human_size(size)}; copy it to the machine and run `{command}`", file=sys.stderr)
        print(kit)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    return run(lambda words: make_parser().parse_args(words), sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
