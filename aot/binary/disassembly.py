"""Does every instruction run on the oldest CPU that the host promises?

The baselines are x86-64-v1 (SSE2) and ARMv8.0-A. They are lists of what is allowed, so an instruction that this file
has never heard of is reported. Code behind a check of the CPU is named in the policy, with the extensions it may use.

Function names come from the symbol table: check a library before it is stripped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import capstone

from .elf import CodeSection, Function, SharedLibrary

__all__ = ["BASELINES", "Guard", "Violation", "beyond_baseline"]

BASELINES = {"x86_64": "x86-64-v1", "aarch64": "ARMv8.0-A"}
_UNDECODABLE = ".byte"  # what capstone calls bytes that it skips
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Guard:
    """Functions that run only after a check of the CPU, and the extensions that the check covers."""

    name: str  # a shell pattern, as in __aarch64_cas[1248]_*
    extensions: frozenset[str]
    reason: str

    def covers(self, violation: Violation) -> bool:
        return violation.extension in self.extensions and fnmatchcase(violation.function, self.name)


@dataclass(frozen=True)
class Violation:
    """One instruction beyond the baseline."""

    function: str  # empty when no symbol covers the address
    address: int
    mnemonic: str
    operands: str
    extension: str  # the extension it belongs to, or "unknown"
    why: str

    def __str__(self) -> str:
        text = f"{self.mnemonic} {self.operands}".rstrip()
        return f"`{text}` at {self.address:#x} in {self.function or 'code without a symbol'}: {self.why}"


def beyond_baseline(library: SharedLibrary, guards: Iterable[Guard] = ()) -> list[Violation]:
    """Every instruction beyond the baseline of the library's CPU that no guard covers, by address."""
    guards = tuple(guards)
    check = _X86_64() if library.machine == "x86_64" else _AArch64()
    found = (v for section in library.code for v in check.section(library, section))
    return [v for v in found if not any(guard.covers(v) for guard in guards)]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _is_padding(library: SharedLibrary, function: Function | None) -> bool:
    """Bytes between functions hold no code, if the symbol table is there to say where functions are."""
    return function is None and not library.stripped


def _name(function: Function | None) -> str:
    return "" if function is None else function.name


def _undecodable(function: Function | None, address: int, operands: str, machine: str) -> Violation:
    why = f"not an instruction that can be decoded, so not known to be within {BASELINES[machine]}"
    return Violation(_name(function), address, _UNDECODABLE, operands, "unknown", why)


def _engine(architecture: int, mode: int) -> Any:
    engine = capstone.Cs(architecture, mode)
    engine.skipdata = True
    return engine


def _decode(engine: Any, data: bytes, start: int) -> Iterator[tuple[int, int, str, str]]:
    """Address, size, mnemonic and operands, in blocks: capstone holds all instructions of one call in memory."""
    at, done = 0, -1
    while at < len(data) and at != done:
        done = at
        for address, size, mnemonic, operands in engine.disasm_lite(data[at : done + _BLOCK + 16], start + at):
            if address - start >= done + _BLOCK:
                break
            yield address, size, mnemonic, operands
            at = address - start + size


# ---------------------------------------------------------------- x86_64

_CONDITIONS = _words("a ae b be c e g ge l le na nae nb nbe nc ne ng nge nl nle no np ns nz o p pe po s z")
_COMPARISONS = _words("eq lt le unord neq nlt nle ord")
_X86_PREFIXES = _words("lock rep repe repne repz repnz notrack bnd data16 xacquire xrelease")  # ignored by older CPUs

_X86_INTEGER = _words("""
    adc add and bsf bsr bswap bt btc btr bts call cbw cdq cdqe clc cld cmc cmp cmpsb cmpsd cmpsq cmpsw cmpxchg
    cmpxchg8b cpuid cqo cwd cwde dec div enter hlt idiv imul inc int int1 int3 jecxz jmp jrcxz lea leave lodsb lodsd
    lodsq lodsw loop loope loopne mov movabs movsb movsd movsq movsw movsx movsxd movzx mul neg nop not or pop popf
    popfq push pushf pushfq rcl rcr rdtsc ret rol ror sal sar sbb scasb scasd scasq scasw shl shld shr shrd stc std
    stosb stosd stosq stosw sub syscall test ud0 ud1 ud2 wait xadd xchg xlatb xor
""")
_X86_NOP_ON_OLDER = _words("endbr32 endbr64 pause prefetchw rdsspd rdsspq")
# F3 0F BC is bsf on CPUs without BMI. Compilers for the baseline emit it where both give the same answer.
_X86_SAME_ON_OLDER = _words("tzcnt")
_MMX = _words("""
    emms movd movq packssdw packsswb packuswb paddb paddd paddsb paddsw paddusb paddusw paddw pand pandn pcmpeqb
    pcmpeqd pcmpeqw pcmpgtb pcmpgtd pcmpgtw pmaddwd pmulhw pmullw por pslld psllq psllw psrad psraw psrld psrlq psrlw
    psubb psubd psubsb psubsw psubusb psubusw psubw punpckhbw punpckhdq punpckhwd punpcklbw punpckldq punpcklwd pxor
""")
_SSE = _words("""
    addps addss andnps andps cmpps cmpss comiss cvtpi2ps cvtps2pi cvtsi2ss cvtss2si cvttps2pi cvttss2si divps divss
    ldmxcsr maskmovq maxps maxss minps minss movaps movhlps movhps movlhps movlps movmskps movntps movntq movss movups
    mulps mulss orps pavgb pavgw pextrw pinsrw pmaxsw pmaxub pminsw pminub pmovmskb pmulhuw prefetchnta prefetcht0
    prefetcht1 prefetcht2 psadbw pshufw rcpps rcpss rsqrtps rsqrtss sfence shufps sqrtps sqrtss stmxcsr subps subss
    ucomiss unpckhps unpcklps xorps
""")
_SSE2 = _words("""
    addpd addsd andnpd andpd clflush cmppd cmpsd comisd cvtdq2pd cvtdq2ps cvtpd2dq cvtpd2pi cvtpd2ps cvtpi2pd cvtps2dq
    cvtps2pd cvtsd2si cvtsd2ss cvtsi2sd cvtss2sd cvttpd2dq cvttpd2pi cvttps2dq cvttsd2si divpd divsd lfence maskmovdqu
    maxpd maxsd mfence minpd minsd movapd movdq2q movdqa movdqu movhpd movlpd movmskpd movntdq movnti movntpd movq2dq
    movsd movupd mulpd mulsd orpd paddq pmuludq pshufd pshufhw pshuflw pslldq psrldq psubq punpckhqdq punpcklqdq shufpd
    sqrtpd sqrtsd subpd subsd ucomisd unpckhpd unpcklpd xorpd
""")
_X86_64_V1 = (
    _X86_INTEGER
    | _X86_NOP_ON_OLDER
    | _X86_SAME_ON_OLDER
    | _MMX
    | _SSE
    | _SSE2
    | {f"{stem}{condition}" for stem in ("cmov", "j", "set") for condition in _CONDITIONS}
    | {f"cmp{comparison}{kind}" for comparison in _COMPARISONS for kind in ("ps", "ss", "pd", "sd")}
)
_X87_BEYOND = _words("femms fisttp")  # 3DNow! and SSE3; all else that begins with f is x87 or fxsave
_X86_GENERIC_GROUPS = _words("jump call ret int iret privilege branch_relative mode64 not64bitmode fpu cmov sse1 sse2")
# Capstone has no group for these.
_X86_EXTENSIONS = {
    "palignr": "ssse3",
    "cmpxchg16b": "cx16",
    "lahf": "sahf",
}


@dataclass
class _X86_64:
    engine: Any = field(default_factory=lambda: _engine(capstone.CS_ARCH_X86, capstone.CS_MODE_64))

    def section(self, library: SharedLibrary, section: CodeSection) -> Iterator[Violation]:
        """Start again at every function, so that data between two of them cannot put the reading out of step."""
        end = section.address + len(section.data)
        inside = {f.address for f in library.functions if section.address < f.address < end}
        starts = sorted({section.address} | inside)
        for start, stop in zip(starts, [*starts[1:], end], strict=True):
            yield from self._stretch(library, start, section.data[start - section.address : stop - section.address])

    def _stretch(self, library: SharedLibrary, start: int, data: bytes) -> Iterator[Violation]:
        skipped_to = -1
        for address, size, mnemonic, operands in _decode(self.engine, data, start):
            if mnemonic != _UNDECODABLE:
                if not _x86_allowed(mnemonic, operands):
                    code = data[address - start : address - start + size]
                    yield self._violation(library, address, code, mnemonic, operands)
                continue
            function = library.function_at(address)
            if address != skipped_to and not _is_padding(library, function):
                yield _undecodable(function, address, operands, "x86_64")
                if function is not None:
                    return  # what follows in this function may be out of step; it is reported already
            skipped_to = address + size

    def _violation(self, library: SharedLibrary, address: int, data: bytes, mnemonic: str, operands: str) -> Violation:
        extension = self._extension(data, mnemonic)
        why = f"{extension} is beyond {BASELINES['x86_64']}"
        return Violation(_name(library.function_at(address)), address, mnemonic, operands, extension, why)

    @cached_property
    def _detailed(self) -> Any:
        engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        engine.detail = True
        return engine

    def _extension(self, data: bytes, mnemonic: str) -> str:
        name = mnemonic.split()[-1]
        instruction = next(self._detailed.disasm(data, 0))
        groups = [str(instruction.group_name(group)) for group in instruction.groups]
        otherwise = "avx" if name.startswith("v") else _X86_EXTENSIONS.get(name, name)
        return next((g for g in groups if g not in _X86_GENERIC_GROUPS), otherwise)


def _x86_allowed(mnemonic: str, operands: str) -> bool:
    if mnemonic in _X86_64_V1:
        return mnemonic != "pextrw" or "ptr" not in operands  # into memory it is SSE4.1
    *prefixes, name = mnemonic.split()
    known = name in _X86_64_V1 or (name.startswith("f") and name not in _X87_BEYOND)
    return known and _X86_PREFIXES.issuperset(prefixes)


# ---------------------------------------------------------------- aarch64

_A64_BASE = _words("""
    adc adcs add adds adr adrp and ands asr asrv b bfc bfi bfm bfxil bic bics bl blr br brk cbnz cbz ccmn ccmp cinc
    cinv clrex cls clz cmn cmp cneg csel cset csetm csinc csinv csneg dc dmb dsb eon eor extr hint hlt ic isb ldar
    ldarb ldarh ldaxp ldaxr ldaxrb ldaxrh ldnp ldp ldpsw ldr ldrb ldrh ldrsb ldrsh ldrsw ldtr ldtrb ldtrh ldtrsb ldtrsh
    ldtrsw ldur ldurb ldurh ldursb ldursh ldursw ldxp ldxr ldxrb ldxrh lsl lslv lsr lsrv madd mneg mov movk movn movz
    mrs msr msub mul mvn neg negs ngc ngcs nop orn orr prfm prfum rbit ret rev rev16 rev32 rev64 ror rorv sbc sbcs
    sbfiz sbfm sbfx sdiv sev sevl smaddl smnegl smsubl smulh smull stlr stlrb stlrh stlxp stlxr stlxrb stlxrh stnp stp
    str strb strh sttr sttrb sttrh stur sturb sturh stxp stxr stxrb stxrh sub subs svc sxtb sxth sxtw tbnz tbz tst
    ubfiz ubfm ubfx udf udiv umaddl umnegl umsubl umulh umull uxtb uxth uxtw wfe wfi yield
""")
# In the hint space: older CPUs execute them as nop.
_A64_HINTS = _words("""
    autia1716 autiasp autiaz autib1716 autibsp autibz bti csdb dgh esb pacia1716 paciasp paciaz pacib1716 pacibsp
    pacibz psb pssbb ssbb tsb xpaclri
""")
_A64_FLOAT = _words("""
    fabd fabs facge facgt fadd faddp fccmp fccmpe fcmeq fcmge fcmgt fcmle fcmlt fcmp fcmpe fcsel fcvtas fcvtau fcvtms
    fcvtmu fcvtns fcvtnu fcvtps fcvtpu fcvtxn fcvtxn2 fcvtzs fcvtzu fdiv fmadd fmax fmaxnm fmaxnmp fmaxnmv fmaxp fmaxv
    fmin fminnm fminnmp fminnmv fminp fminv fmla fmls fmov fmsub fmul fmulx fneg fnmadd fnmsub fnmul frecpe frecps
    frecpx frinta frinti frintm frintn frintp frintx frintz frsqrte frsqrts fsqrt fsub scvtf ucvtf
""")
_A64_VECTOR = _words("""
    abs addhn addhn2 addp addv bif bit bsl cmeq cmge cmgt cmhi cmhs cmle cmlt cmtst cnt dup ext fcvt fcvtl fcvtl2 fcvtn
    fcvtn2 ins ld1 ld1r ld2 ld2r ld3 ld3r ld4 ld4r mla mls movi mvni not pmul pmull pmull2 raddhn raddhn2 rshrn rshrn2
    rsubhn rsubhn2 saba sabal sabal2 sabd sabdl sabdl2 sadalp saddl saddl2 saddlp saddlv saddw saddw2 shadd shl shll
    shll2 shrn shrn2 shsub sli smax smaxp smaxv smin sminp sminv smlal smlal2 smlsl smlsl2 smov smull2 sqabs sqadd
    sqdmlal sqdmlal2 sqdmlsl sqdmlsl2 sqdmulh sqdmull sqdmull2 sqneg sqrdmulh sqrshl sqrshrn sqrshrn2 sqrshrun
    sqrshrun2 sqshl sqshlu sqshrn sqshrn2 sqshrun sqshrun2 sqsub sqxtn sqxtn2 sqxtun sqxtun2 srhadd sri srshl srshr
    srsra sshl sshll sshll2 sshr ssra ssubl ssubl2 ssubw ssubw2 st1 st2 st3 st4 subhn subhn2 suqadd sxtl sxtl2 tbl tbx
    trn1 trn2 uaba uabal uabal2 uabd uabdl uabdl2 uadalp uaddl uaddl2 uaddlp uaddlv uaddw uaddw2 uhadd uhsub umax umaxp
    umaxv umin uminp uminv umlal umlal2 umlsl umlsl2 umov umull2 uqadd uqrshl uqrshrn uqrshrn2 uqshl uqshrn uqshrn2
    uqsub uqxtn uqxtn2 urecpe urhadd urshl urshr ursqrte ursra ushl ushll ushll2 ushr usqadd usra usubl usubl2 usubw
    usubw2 uxtl uxtl2 uzp1 uzp2 xtn xtn2 zip1 zip2
""")
_A64_CONDITIONS = _words("eq ne hs cs lo cc mi pl vs vc hi ls ge lt gt le al nv")
_ARMV8_0 = _A64_BASE | _A64_HINTS | _A64_FLOAT | _A64_VECTOR | {f"b.{condition}" for condition in _A64_CONDITIONS}

_A64_CACHE = _words("civac cvac cvau ivac zva isw csw cisw")
_A64_WRITABLE = _words("fpcr fpsr nzcv tpidr_el0")
_A64_RANDOM = _words("rndr rndrrs")
_SVE_REGISTER = re.compile(r"\b(?:z\d+|p\d+|za\d?)(?:\b|\.)")
_HALF_REGISTER = re.compile(r"\bh\d+\b|\.[248]?h\b")
_LITERAL = re.compile(r"([wsxdq])\d+, #0x([0-9a-f]+)")
_SOMEWHERE = 1 << 32  # an address that no load of a literal reaches 0 from: small numbers are written in another way
_LITERAL_BYTES = {"w": 4, "s": 4, "x": 8, "d": 8, "q": 16}
_A64_EXTENSIONS = (
    ("lse", re.compile(r"cas\w*|swp\w*|(?:ld|st)(?:add|clr|eor|set|[su]max|[su]min)(?:a|l|al)?[bh]?")),
    ("sha2", re.compile(r"sha(?:1|256)\w+")),
    ("sha3", re.compile(r"sha512\w+|eor3|rax1|xar|bcax")),
    ("aes", re.compile(r"aes\w+")),
    ("crc32", re.compile(r"crc32\w+")),
    ("dotprod", re.compile(r"[su]dot|usdot|sudot")),
    ("rdm", re.compile(r"sqrdml[as]h")),
    ("rcpc", re.compile(r"ldapu?r\w*|stlur\w*")),
    ("bf16", re.compile(r"bf(?:cvt|dot|mlal|mmla)\w*")),
    ("pauth", re.compile(r"(?:pac|aut)\w+|xpac[di]|(?:ret|eret)a[ab]|b[lr]+a[ab]z?|ldra[ab]")),
)


_WITHIN: set[bytes] = set()  # words that were decoded before, are within the baseline and load no literal


@dataclass
class _AArch64:
    engine: Any = field(default_factory=lambda: _engine(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM))

    def section(self, library: SharedLibrary, section: CodeSection) -> list[Violation]:
        found: list[Violation] = []
        literals: set[int] = set()
        for address, mnemonic, operands in self._to_look_at(section):
            literals.update(_literal_words(mnemonic, operands))
            if mnemonic == _UNDECODABLE:
                function = library.function_at(address)
                if not _is_padding(library, function):
                    found.append(_undecodable(function, address, operands, "aarch64"))
            elif extension := _a64_beyond(mnemonic, operands):
                why = f"{extension} is beyond {BASELINES['aarch64']}"
                name = _name(library.function_at(address))
                found.append(Violation(name, address, mnemonic, operands, extension, why))
        return [v for v in found if v.address not in literals and not _in_data(v.address, section)]

    def _to_look_at(self, section: CodeSection) -> Iterator[tuple[int, str, str]]:
        """What may be beyond the baseline, and loads of literals. Any other word is decoded once, for all libraries."""
        words = [section.data[at : at + 4] for at in range(0, len(section.data), 4)]
        distinct = [word for word in dict.fromkeys(words) if word not in _WITHIN]
        chosen = {
            distinct[(at - _SOMEWHERE) // 4]
            for at, _, mnemonic, operands in _decode(self.engine, b"".join(distinct), _SOMEWHERE)
            if mnemonic == _UNDECODABLE or _a64_beyond(mnemonic, operands) or _literal_words(mnemonic, operands)
        }
        _WITHIN.update(word for word in distinct if word not in chosen)
        for index, word in enumerate(words):
            if word in chosen:
                for address, _, mnemonic, operands in self.engine.disasm_lite(word, section.address + 4 * index):
                    yield address, mnemonic, operands


def _literal_words(mnemonic: str, operands: str) -> range:
    """The words of the literal pool that a load relative to the program counter reads."""
    match = _LITERAL.fullmatch(operands) if mnemonic in ("ldr", "ldrsw") else None
    if match is None:
        return range(0)
    start = int(match[2], 16)
    return range(start, start + (4 if mnemonic == "ldrsw" else _LITERAL_BYTES[match[1]]), 4)


def _in_data(address: int, section: CodeSection) -> bool:
    index = bisect_right(section.data_ranges, address, key=lambda marked: marked[0]) - 1
    return index >= 0 and address < section.data_ranges[index][1]


def _a64_beyond(mnemonic: str, operands: str) -> str | None:
    """The extension that an instruction needs; None when the baseline has it."""
    if mnemonic not in _ARMV8_0:
        return _a64_extension(mnemonic, operands)
    if _SVE_REGISTER.search(operands):
        return "sve"
    if mnemonic in _A64_FLOAT:
        return "fp16" if _HALF_REGISTER.search(operands) else None
    return _a64_special(mnemonic, operands)


def _a64_extension(mnemonic: str, operands: str) -> str:
    if _SVE_REGISTER.search(operands):
        return "sve"
    return next((name for name, pattern in _A64_EXTENSIONS if pattern.fullmatch(mnemonic)), mnemonic)


def _a64_special(mnemonic: str, operands: str) -> str | None:
    """Mnemonics of the baseline that some operands take beyond it."""
    first, _, last = operands.partition(", ")
    if mnemonic in ("pmull", "pmull2") and ".1q" in first:
        return "aes"
    if mnemonic == "dc" and first not in _A64_CACHE:
        return f"dc {first}"
    if mnemonic == "msr" and first not in _A64_WRITABLE:
        return f"msr {first}"
    return "rng" if mnemonic == "mrs" and last in _A64_RANDOM else None
