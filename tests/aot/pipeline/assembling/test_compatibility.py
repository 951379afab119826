"""Contributions that cannot be one bundle are refused with the reason and a next step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contributed import HOST, OTHER_HOST, contribution, file, kernel

from aot.errors import BuildError
from aot.pipeline.assembling.compatibility import check_fit
from aot.pipeline.assembling.contributions import Contribution

OLD = contribution(kernel("add", "sm_80"))
BOTH = (HOST, OTHER_HOST)


@pytest.mark.parametrize(
    "contributions",
    [
        (OLD,),
        (OLD, contribution(kernel("add", "sm_90a"))),
        (OLD, contribution(kernel("mul", "sm_80", parameters=("a", "b")))),
        (OLD, OLD),  # what both give is the same
        (OLD, contribution(kernel("add", "sm_80", verified_on=("H200 2026-11-15",)))),
        (OLD, contribution(kernel("add", "sm_80", hosts=(OTHER_HOST,)), hosts=(OTHER_HOST,))),
        (
            contribution(kernel("add", "sm_80", archives=False), archives=False),
            contribution(kernel("mul", "sm_80", archives=False), archives=False),
        ),
    ],
)
def test_what_fits_together_passes(contributions: tuple[Contribution, ...]) -> None:
    check_fit(contributions)


def test_types_that_were_derived_from_the_variants_of_a_bundle_need_not_agree() -> None:
    built = kernel("add", "sm_80")
    typed = tuple(parameter.replace(type="tensor") for parameter in built.signature.parameters)
    old = contribution(replace(built, signature=built.signature.replace(parameters=typed)))
    check_fit([old, contribution(kernel("add", "sm_90a"))])


@pytest.mark.parametrize(
    ("contributions", "said", "hint"),
    [
        ((contribution(),), "no kernel would be left", "aot inspect"),
        ((OLD, contribution(kernel("mul", "sm_80"), name="c")), "the bundles are called b and c", "--name"),
        (
            (OLD, contribution(kernel("mul", "sm_80"), toolchain={"cuda": "13", "cute-aot": "1"})),
            "made with cuda 12 and 13",
            "with the same",
        ),
        (
            (OLD, contribution(kernel("mul", "sm_80"), toolchain={"cuda": "12", "cute-aot": "2"})),
            "made with cute-aot 1 and 2",
            "with the same",
        ),
        ((OLD, contribution(kernel("mul", "sm_80"), glibc="2.34")), "glibc 2.28 with CUDA runtime static and", None),
        (
            (OLD, contribution(kernel("mul", "sm_80", hosts=BOTH), hosts=BOTH)),
            f"add for sm_80 was built for {HOST}, but not for {OTHER_HOST}",
            f"--host {OTHER_HOST} --arch sm_80 --kernel add",
        ),
        ((OLD, contribution(kernel("add", "sm_80", code="other"))), "add.so differs between the bundles", "prune"),
        (
            (OLD, contribution(kernel("add", "sm_80", point="f16"))),
            "the bundles contain different variants of add for sm_80",
            "prune",
        ),
        (
            (OLD, contribution(kernel("add", "sm_90a", parameters=("x", "y")))),
            "the signature of add changed since the build for sm_80",
            "aot prune BUNDLE --kernel add",
        ),
        (
            (OLD, contribution(kernel("mul", "sm_80", archives=False), archives=False, label="`there`")),
            "`there` has no archives for static linking",
            "--no-archives",
        ),
        (
            (
                contribution(kernel("add", "sm_80"), contracts={"contracts/_shared.py": file("one")}),
                contribution(kernel("mul", "sm_80"), contracts={"contracts/_shared.py": file("other")}),
            ),
            "contracts/_shared.py differs between the bundles",
            "from the same source",
        ),
        (
            (
                contribution(kernel("add", "sm_80"), contracts={"contracts/add.py": file("one")}),
                contribution(kernel("add", "sm_90a"), contracts={"contracts/rows/add.py": file("one")}),
            ),
            "the contract of add is contracts/add.py in one of the bundles and contracts/rows/add.py in another",
            "from the same source",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(
    contributions: tuple[Contribution, ...], said: str, hint: str | None
) -> None:
    with pytest.raises(BuildError) as caught:
        check_fit(contributions)
    assert said in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")
