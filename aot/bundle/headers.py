"""``include/<name>.h`` and ``<name>.hpp``: one typed function per public function of a bundle.

Derived from the manifest's kernels and the kinds of argument in ``details/``; the same header serves static
and dynamic linking. What a parameter is in C follows from what its variants take: a tensor, a number, an
address, each element of a tuple for itself. Where variants differ, it is an ``aot_value``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.core.functions import function_symbol, parameter_facts
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter

from .details import read_details
from .layout import call_symbol
from .types import Kinds, function_kinds, type_of

__all__ = ["c_header", "cpp_header", "header_texts", "write_headers"]


_KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
    concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete
    do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires restrict return short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
    xor_eq linux unix aot std stream bytes errno EOF NULL""".split()  # noqa: SIM905
)
_LOCAL = ("args_", "result_", "which_")  # names that the functions below use themselves


@dataclass(frozen=True)
class _Type:
    c: str
    cpp: str
    value: str  # from the C parameter to an aot_value
    cpp_value: str


_TENSOR = _Type(
    "const aot_tensor* {}", "const ::aot::TensorView& {}", "aot_from_tensor({})", "aot_from_tensor({}.get())"
)
_OPTIONAL = _Type(
    "const aot_tensor* {}", "::aot::OptionalTensor {}", "aot_from_tensor({})", "aot_from_tensor({}.get())"
)
_FLOAT = _Type("double {}", "double {}", "aot_from_float({})", "aot_from_float({})")
_INT = _Type("int64_t {}", "std::int64_t {}", "aot_from_int({})", "aot_from_int({})")
_POINTER = _Type("const void* {}", "const void* {}", "aot_from_pointer({})", "aot_from_pointer({})")
_ANY = _Type("aot_value {}", "aot_value {}", "{}", "{}")
_ABSENT = _Type("", "", "aot_none()", "aot_none()")  # what a caller does not pass
_TYPES = {"tensor": _TENSOR, "tensor?": _OPTIONAL, "float": _FLOAT, "int": _INT, "pointer": _POINTER}


def write_headers(folder: Path, bundle: str, kernels: Mapping[str, KernelRecord], details: Iterable[Path]) -> None:
    """Write both headers of a bundle into a folder."""
    kinds = function_kinds(variant for path in details for variant in read_details(path))
    folder.mkdir()
    for name, text in header_texts(bundle, kernels, kinds).items():
        (folder / name).write_text(text)


def header_texts(bundle: str, kernels: Mapping[str, KernelRecord], kinds: Mapping[str, Kinds]) -> dict[str, str]:
    """The contents of a bundle's ``include/``, by name."""
    return {f"{bundle}.h": c_header(bundle, kernels, kinds), f"{bundle}.hpp": cpp_header(bundle, kernels, kinds)}


@dataclass(frozen=True)
class _Argument:
    """A public argument: one C parameter, or, of a tuple, one per element."""

    name: str
    type: _Type | None  # None: a tuple
    elements: tuple[_Argument, ...] = ()

    def leaves(self) -> Iterator[_Argument]:
        if self.type is not None and self.type is not _ABSENT:
            yield self
        for element in self.elements:
            yield from element.leaves()


def _argument(label: str, wanted_name: str, kinds: Kinds, taken: set[str]) -> _Argument:
    name = _free(wanted_name, taken)
    wanted = type_of(kinds.get(label, frozenset()))
    elements = [other for other in kinds if re.fullmatch(re.escape(label) + r"\[\d+\]", other)]
    if wanted == "tuple" and elements and _is_fixed(label, len(elements), kinds):
        parts = (_argument(f"{label}[{i}]", f"{name}_{i}", kinds, taken) for i in range(len(elements)))
        return _Argument(name, None, tuple(parts))
    return _Argument(name, _TYPES.get(wanted, _ANY))


def _is_fixed(label: str, count: int, kinds: Kinds) -> bool:
    """Whether all variants take a tuple of that length."""
    return kinds.get(f"len({label})") == frozenset({(count, count)})


def _identifier(name: str) -> str:
    return f"{name}_" if name in _KEYWORDS else name


def _free(name: str, taken: set[str]) -> str:
    """A name that no other parameter of the function has: elements of a tuple `x` are `x_0`, and so may a parameter be."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _prefix(bundle: str) -> str:
    """Of functions in C; a bundle called `aot` must keep clear of aot.h."""
    return "aot_" if bundle == "aot" else bundle


def _arguments(kernel: KernelRecord, kinds: Kinds) -> list[_Argument]:
    taken = set(_LOCAL)
    return [
        _argument(parameter.name, _identifier(parameter.name), kinds, taken)
        if parameter.workspace is None
        else _Argument(_free(_identifier(parameter.name), taken), _OPTIONAL)
        for parameter in kernel.parameters
    ]


# Documentation.


def _comment(kernel: KernelRecord, function: str, indent: str = "") -> list[str]:
    lines = [*kernel.doc.strip().splitlines(), ""]
    lines += [_parameter_line(parameter) for parameter in kernel.parameters]
    lines += [f"Choices made: {text}" for text in [_chosen(kernel, function)] if text]
    lines.append("Built for " + ", ".join(map(str, kernel.archs)) + ".")
    # A comment must not end in the middle of a documentation that mentions one, nor by a backslash that joins two lines.
    split = [part for line in lines for part in line.splitlines() or [""]]
    safe = [line.replace("*/", "* /").replace("/*", "/ *").rstrip("\\ ") for line in split]
    while safe and not safe[0]:
        safe.pop(0)
    return [f"{indent}/* {safe[0]}", *(f"{indent} * {line}".rstrip() for line in safe[1:]), f"{indent} */"]


def _parameter_line(parameter: Parameter) -> str:
    facts = parameter_facts(parameter)
    head = f"{parameter.name} ({'; '.join(facts)})" if facts else parameter.name
    return f"  {head}: {parameter.doc}".rstrip(": ")


def _chosen(kernel: KernelRecord, function: str) -> str:
    values = function.split("__")[1:] if kernel.choices else []
    return ", ".join(f"{choice.name} = {value}" for choice, value in zip(kernel.choices, values, strict=False))


# The C header.


def c_header(bundle: str, kernels: Mapping[str, KernelRecord], kinds: Mapping[str, Kinds]) -> str:
    guard = f"AOT_BUNDLE_{bundle.upper()}_H_"
    lines = [
        f"/* Functions of the bundle `{bundle}`. Generated by cute-aot: rebuild the bundle rather than edit.",
        " *",
        " * Each returns AOT_OK or another code of aot.h; aot_last_error has the sentence. A call goes to the stream that is",
        f" * set in this thread, or, by the function that ends in _on, to the one given. `{_prefix(bundle)}_aot` gives the",
        " * bundle as aot.h knows it: preload, explain, list. Tensors must stay as they are until the call returns.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <aot/aot.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"extern const aot_core aot_{bundle}_core;",
        f"extern const aot_interface aot_{bundle}_interface;",
        "",
        f"static inline int {_prefix(bundle)}_aot(aot_bundle* bundle) {{ return aot_attach(&aot_{bundle}_interface, bundle); }}",
        "",
        f"static inline int {_prefix(bundle)}_preload(int32_t device) {{",
        f"  return aot_{bundle}_interface.preload(NULL, device) == 0 ? AOT_OK : aot_raised_(&aot_{bundle}_core);",
        "}",
    ]
    taken = {function for kernel in kernels.values() for function in kernel.functions}
    for kernel in kernels.values():
        for function in kernel.functions:
            arguments = _arguments(kernel, kinds.get(function, {}))
            with_stream = _takes_stream(arguments) and f"{function}_on" not in taken
            lines += ["", *_c_function(bundle, kernel, function, arguments, with_stream=with_stream)]
            if (asking := _asking(kernel, arguments)) is not None and f"{function}_workspace_size" not in taken:
                lines += _c_workspace_size(bundle, function, asking)
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */"]
    return "\n".join(lines) + "\n"


def _c_function(
    bundle: str, kernel: KernelRecord, function: str, arguments: Sequence[_Argument], *, with_stream: bool
) -> list[str]:
    symbol = call_symbol(bundle, function)
    leaves = [leaf for argument in arguments for leaf in argument.leaves()]
    parameters = [leaf.type.c.format(leaf.name) for leaf in leaves if leaf.type]
    body = _body(arguments, cpp=False)
    lines = [
        f"extern int {symbol}(void* self, const aot_value* args, int32_t count, aot_value* result);",
        "",
        *_comment(kernel, function),
        f"static inline int {_prefix(bundle)}_{function}({', '.join(parameters) or 'void'}) {{",
        *body,
        "  aot_value result_ = {AOT_NONE, 0, {0}};",
        f"  return {symbol}(NULL, args_, {len(arguments)}, &result_) == 0 ? AOT_OK : aot_raised_(&aot_{bundle}_core);",
        "}",
    ]
    if with_stream:
        lines += [
            "",
            f"static inline int {_prefix(bundle)}_{function}_on({', '.join(['void* stream', *parameters])}) {{",
            *body,
            f"  return aot_call_entry_on_(&aot_{bundle}_core, {symbol}, stream, args_, {len(arguments)});",
            "}",
        ]
    return lines


def _asking(kernel: KernelRecord, arguments: Sequence[_Argument]) -> list[_Argument] | None:
    """The arguments without the workspace, to ask for its size; None if the kernel has none."""
    if not any(parameter.workspace is not None for parameter in kernel.parameters):
        return None
    return [
        argument if parameter.workspace is None else _Argument(argument.name, _ABSENT)
        for parameter, argument in zip(kernel.parameters, arguments, strict=True)
    ]


def _c_workspace_size(bundle: str, function: str, arguments: Sequence[_Argument]) -> list[str]:
    leaves = [leaf for argument in arguments for leaf in argument.leaves()]
    parameters = [leaf.type.c.format(leaf.name) for leaf in leaves if leaf.type]
    return [
        "",
        f"static inline int {_prefix(bundle)}_{function}_workspace_size({', '.join([*parameters, 'size_t* bytes'])}) {{",
        *_body(arguments, cpp=False),
        f"  return aot_entry_workspace_size_(&aot_{bundle}_core, {call_symbol(bundle, function)}, args_, "
        f"{len(arguments)}, bytes);",
        "}",
    ]


def _body(arguments: Sequence[_Argument], *, cpp: bool) -> list[str]:
    """Statements that put the arguments into an array ``args_``."""
    lines: list[str] = []
    values = [_value(argument, lines, cpp=cpp) for argument in arguments]
    if cpp:
        return [*lines, f"  const aot_value args_[] = {{{', '.join(values) or 'aot_none()'}}};"]
    # Assigned one by one: C++11 and C99 both take it, whatever the value is.
    lines.append(f"  aot_value args_[{max(len(values), 1)}];")
    lines += [f"  args_[{i}] = {value};" for i, value in enumerate(values)] or ["  args_[0] = aot_none();"]
    return lines


def _value(argument: _Argument, lines: list[str], *, cpp: bool) -> str:
    if argument.type is not None:
        return (argument.type.cpp_value if cpp else argument.type.value).format(argument.name)
    values = [_value(element, lines, cpp=cpp) for element in argument.elements]
    name = argument.name
    lines.append(f"  aot_value {name}_values_[{max(len(values), 1)}];")
    lines += [f"  {name}_values_[{i}] = {value};" for i, value in enumerate(values)]
    lines.append(f"  aot_tuple_header {name}_tuple_;")
    return f"aot_from_tuple(&{name}_tuple_, {name}_values_, {len(values)})"


# The C++ header.


def cpp_header(bundle: str, kernels: Mapping[str, KernelRecord], kinds: Mapping[str, Kinds]) -> str:
    guard = f"AOT_BUNDLE_{bundle.upper()}_HPP_"
    lines = [
        f"// Functions of the bundle `{bundle}`. Generated by cute-aot: rebuild the bundle rather than edit.",
        "//",
        "// Each throws a class under aot::Error. The last parameter of a function with tensors is the stream, aot::Stream(s);",
        f"// without it a call goes to the stream that is set in this thread: aot::StreamScope(aot_{bundle}_core, s).",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <aot/aot.hpp>",
        "",
        f"#include <{bundle}.h>",
        "",
        f"namespace {_identifier(bundle)} {{",
        "",
        "// The bundle itself: list, preload, explain. A program that refers to it links every kernel.",
        f"inline ::aot::Bundle aot() {{ return ::aot::Bundle(aot_{bundle}_interface); }}",
    ]
    taken = {function for kernel in kernels.values() for function in kernel.functions}
    for kernel in kernels.values():
        for function in kernel.functions:
            arguments = _arguments(kernel, kinds.get(function, {}))
            lines += ["", *_cpp_function(bundle, kernel, function, arguments)]
            if (asking := _asking(kernel, arguments)) is not None and f"{function}_workspace_size" not in taken:
                lines += _cpp_workspace_size(bundle, function, asking)
        lines += _cpp_choices(kernel, kinds)
    lines += ["", f"}}  // namespace {_identifier(bundle)}", "", f"#endif  // {guard}"]
    return "\n".join(lines) + "\n"


def _cpp_parameters(kernel: KernelRecord, arguments: Sequence[_Argument]) -> list[str]:
    leaves = [leaf for argument in arguments for leaf in argument.leaves()]
    defaults = _defaults(kernel, arguments)
    texts = []
    for leaf in leaves:
        assert leaf.type is not None
        default = f" = {defaults[leaf.name]}" if leaf.name in defaults else ""
        texts.append(leaf.type.cpp.format(leaf.name) + default)
    if _takes_stream(arguments):
        texts.append("::aot::Stream stream = {}")
    return texts


def _takes_stream(arguments: Sequence[_Argument]) -> bool:
    return any(leaf.type in (_TENSOR, _OPTIONAL, _ANY) for argument in arguments for leaf in argument.leaves())


def _defaults(kernel: KernelRecord, arguments: Sequence[_Argument]) -> dict[str, str]:
    """C++ defaults, which only the last parameters may have."""
    found: dict[str, str] = {}
    for parameter, argument in reversed(list(zip(kernel.parameters, arguments, strict=True))):
        text = _default(parameter, argument)
        if text is None:
            break
        found[argument.name] = text
    return found


def _default(parameter: Parameter, argument: _Argument) -> str | None:
    value = parameter.default
    if not parameter.has_default:
        return None
    if value is None:
        return "nullptr" if argument.type in (_OPTIONAL, _POINTER) else None
    if argument.type is _FLOAT and abs(value) < float("inf"):
        return repr(float(value))
    return str(int(value)) if argument.type is _INT else None


def _cpp_function(bundle: str, kernel: KernelRecord, function: str, arguments: Sequence[_Argument]) -> list[str]:
    stream = "stream" if _takes_stream(arguments) else "{}"
    symbol = call_symbol(bundle, function)
    return [
        *_comment(kernel, function),
        f"inline void {_identifier(function)}({', '.join(_cpp_parameters(kernel, arguments))}) {{",
        *_body(arguments, cpp=True),
        f"  ::aot::detail::call(aot_{bundle}_core, {symbol}, args_, {len(arguments)}, {stream});",
        "}",
    ]


def _cpp_workspace_size(bundle: str, function: str, arguments: Sequence[_Argument]) -> list[str]:
    leaves = [leaf for argument in arguments for leaf in argument.leaves()]
    parameters = ", ".join(leaf.type.cpp.format(leaf.name) for leaf in leaves if leaf.type)
    return [
        "",
        f"inline std::size_t {function}_workspace_size({parameters}) {{",
        *_body(arguments, cpp=True),
        f"  return ::aot::detail::workspace_size(aot_{bundle}_core, {call_symbol(bundle, function)}, args_, "
        f"{len(arguments)});",
        "}",
    ]


def _cpp_choices(kernel: KernelRecord, kinds: Mapping[str, Kinds]) -> list[str]:
    """For one compile-time choice, an enum and a function that takes it, beside the functions by name."""
    if len(kernel.choices) != 1 or not kernel.functions:
        return []
    choice = kernel.choices[0]
    built = [value for value in choice.values if function_symbol(kernel.name, (value,)) in kernel.functions]
    signatures = {
        tuple(_cpp_parameters(kernel, _arguments(kernel, kinds.get(function, {})))) for function in kernel.functions
    }
    if not built or len(signatures) != 1:
        return []
    return _choosing(kernel, choice, built, _arguments(kernel, kinds.get(kernel.functions[0], {})))


def _choosing(kernel: KernelRecord, choice: Choice, built: Sequence[str], arguments: Sequence[_Argument]) -> list[str]:
    enum = f"{kernel.name}_{choice.name}"
    enumerators = [_enumerator(value) for value in built]
    names = [leaf.name for argument in arguments for leaf in argument.leaves()]
    passed = ", ".join([*names, *(["stream"] if _takes_stream(arguments) else [])])
    lines = ["", f"enum class {enum} {{ {', '.join(enumerators)} }};", ""]
    lines += [f"/* {kernel.name}, with {choice.name} chosen where it is called. */"]
    lines.append(
        f"inline void {_identifier(kernel.name)}({', '.join([f'{enum} which_', *_cpp_parameters(kernel, arguments)])}) {{"
    )
    lines.append("  switch (which_) {")
    for value, enumerator in zip(built, enumerators, strict=True):
        function = _identifier(function_symbol(kernel.name, (value,)))
        lines.append(f"    case {enum}::{enumerator}: return {function}({passed});")
    return [*lines, "  }", "}"]


def _enumerator(value: str) -> str:
    # A label may begin with a digit.
    name = re.sub(r"\W", "_", value)
    return f"_{name}" if name[0].isdigit() else _identifier(name)
