"""Inline PTX as C++ for the SIMT machine: what check_file.py puts in place of an asm statement.

`asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));` becomes a block of C++ on the same
lines, with calls of common/simt/ptx.h. Known are asynchronous copies, mbarriers, fences, loads, stores, atomics, the
special registers and what code around them needs: moves, predicates, labels and branches, some arithmetic. Any other
instruction is refused in a sentence.
"""

import re

from common.tools.cpp_text import closing, line_of, parts, texts_in


class RequestError(Exception):
    """The file cannot be run here; the message is a sentence."""


class PtxError(Exception):
    """An instruction cannot be translated; the message says what it is, and the caller adds the place."""


SPECIAL = {
    "laneid": "::simt::lane()", "warpid": "(::simt::rank_in_block() / 32)", "clock": "(unsigned)::clock64()",
    "clock64": "::clock64()", "globaltimer": "::clock64()", "lanemask_eq": "(1u << ::simt::lane())",
    "lanemask_lt": "((1u << ::simt::lane()) - 1)", "lanemask_le": "((2u << ::simt::lane()) - 1)",
    "lanemask_gt": "~((2u << ::simt::lane()) - 1)", "lanemask_ge": "~((1u << ::simt::lane()) - 1)",
    "cluster_ctarank": "::simt::cluster_rank()", "cluster_nctarank": "::simt::cluster_size()",
    **{f"{ptx}.{axis}": f"{cuda}.{axis}" for axis in "xyz"
       for ptx, cuda in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))},
}
TYPES = {"b8": "std::uint8_t", "u8": "std::uint8_t", "s8": "std::int8_t", "b16": "std::uint16_t",
         "u16": "std::uint16_t", "s16": "std::int16_t", "b32": "std::uint32_t", "u32": "std::uint32_t",
         "s32": "std::int32_t", "f32": "float", "b64": "std::uint64_t", "u64": "std::uint64_t",
         "s64": "std::int64_t", "f64": "double", "pred": "bool"}
VECTORS = {"v2": 2, "v4": 4}
SCOPES = {"cta": "block", "cluster": "device", "gpu": "device", "sys": "system"}
FENCES = {"cta": "::__threadfence_block()", "gpu": "::__threadfence()", "sys": "::__threadfence_system()",
          "cluster": "::__threadfence()", "gl": "::__threadfence()"}
INSTEAD = (  # of instructions that are often met: how they begin, and what to use
    (("mma", "wmma", "wgmma", "ldmatrix", "stmatrix", "tcgen05"), "tensor cores are not here: use multiply-adds"),
    (("cp.async.bulk.tensor", "cp.reduce"), "tensor maps are not here: use one bulk copy for each row"),
    (("barrier.sync", "barrier.arrive", "bar.sync", "bar.arrive", "bar.red"),
     "named barriers are not here: use __syncthreads() or an mbarrier"),
)
KNOWN = "common/simt/README.md lists those that it has"


# --- Statements ---


def statement(source, end_of_keyword):
    """(end, template, operands) of the asm statement whose keyword ends there. An operand: (constraint, expression)."""
    opening = source.index("(", end_of_keyword)
    end = closing(source, opening)
    sections = parts(source[opening + 1:end].replace("\\\n", " "), ":")
    template = "".join(texts_in(sections[0]))
    if re.sub(r"\s|//[^\n]*|/\*.*?\*/", "", texts_in(sections[0], replaced="")):
        raise PtxError("its text is put together by a macro, which only a compiler can read: write the text itself")
    operands = []
    for section in sections[1:3]:
        for operand in filter(str.strip, parts(section, ",")):
            match = re.match(r'\s*"([=+]?)([rlhfdn])"\s*\((.*)\)\s*$', operand, re.DOTALL)
            if not match:
                raise PtxError(f"its operand {' '.join(operand.split())} is none of r, l, h, f, d and n")
            operands.append((match[1] + match[2], " ".join(match[3].split())))
    return end + 1, template, operands


def translated(template, operands):
    """The C++ of a statement, on one line. Raises PtxError."""
    before, after = [], []
    for i, (constraint, expression) in enumerate(operands):
        kind = constraint[-1]
        if kind == "n":
            before.append(f"constexpr auto simt_p{i} = {expression};")
        elif constraint[0] == "=":
            before.append(f"::simt::ptx::Register<'{kind}'>::Type simt_p{i}{{}};")
        else:
            before.append(f"auto simt_p{i} = ::simt::ptx::input<'{kind}'>({expression});")
        if constraint[0] in "=+":
            after.append(f"::simt::ptx::output({expression}, simt_p{i});")
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", template.replace("%%", "%").replace("%=", "_n"), flags=re.DOTALL)
    body = []
    text = " ".join(with_braces_apart(text).split())
    for line in filter(None, map(str.strip, re.split(r"(?<=[;{}:])(?<!::)(?!:)", text))):
        body.append(one(line))
    code = " ".join([*before, *body, *after])
    if re.search(r"\bgoto\b", code):
        return f"[&] {{ {code} }}()"
    return f"do {{ {code} }} while (0)"


def with_braces_apart(text):
    """The braces of a vector operand as parentheses, so that those which remain are scopes'."""
    return re.sub(r"\{([^{};]*)\}(?=\s*[,;])", r"(\1)", text)


def one(line):
    """One instruction, label, declaration or brace."""
    if line in "{}":
        return line
    if line.endswith(":"):
        return f"simt_l_{line[:-1].strip().lstrip('$')}: ;"
    line = line.rstrip(";").strip()
    if not line:
        return ""
    if line.startswith(".reg"):
        _, kind, names = line.split(None, 2)
        names = [f"simt_r_{name.strip().lstrip('%$')}" for name in names.split(",")]
        return f"[[maybe_unused]] {TYPES[kind.lstrip('.')]} {', '.join(names)};"
    guard = ""
    if match := re.match(r"@(!?)([%\w]+)\s+", line):
        guard, line = f"if ({match[1]}{value(match[2])}) ", line[match.end():]
    opcode, _, operands = line.partition(" ")
    return f"{guard}{{ {instruction(opcode, operands_of(operands))}; }}"


def operands_of(text):
    found, depth, begin = [], 0, 0
    for at, character in enumerate(text + ","):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
    return [operand for operand in found if operand]


def value(operand):
    """An operand as a C++ expression."""
    operand = operand.strip()
    if match := re.fullmatch(r"%(\d+)", operand):
        return f"simt_p{match[1]}"
    if operand.startswith("%") and operand[1:] in SPECIAL:
        return SPECIAL[operand[1:]]
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
        return f"std::bit_cast<float>(0x{match[1]}u)"
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?|-?\d+\.\d*", operand):
        return operand
    if re.fullmatch(r"\$?[A-Za-z_]\w*|%[a-z]+\d+", operand):
        return f"simt_r_{operand.lstrip('%$')}"
    raise PtxError(f"the SIMT machine does not know the operand {operand} of PTX")


def address(operand):
    """The value between brackets."""
    match = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(%?\w+))?\s*\]", operand)
    if not match:
        raise PtxError(f"the SIMT machine does not know the address {operand} of PTX")
    return value(match[1]) + (f" + {value(match[2])}" if match[2] else "")


# --- Instructions ---


def instruction(opcode, operands):
    """The C++ of an instruction, without its semicolon. Raises PtxError."""
    quals = opcode.split(".")[1:]
    try:
        for pattern, translate in TABLE:
            if re.fullmatch(pattern, opcode):
                return translate(quals, operands)
    except (IndexError, KeyError, StopIteration, ValueError):
        pass
    for begins, sentence in INSTEAD:
        if opcode.startswith(begins):
            raise PtxError(f"the SIMT machine has no PTX instruction {opcode}; {sentence}")
    raise PtxError(f"the SIMT machine has no PTX instruction {opcode}; {KNOWN}")


def type_of(quals):
    return TYPES[next(qual for qual in reversed(quals) if qual in TYPES)]


def pointer(quals, kind, operand):
    space = "shared" if any(qual.startswith("shared") for qual in quals) else "global"
    return f"::simt::ptx::{space}<{kind}>({address(operand)})"


def order_of(quals):
    """(memory order, scope) of an access that has one, else None."""
    order = next((qual for qual in quals if qual in ("relaxed", "acquire", "release", "acq_rel")), None)
    if not order:
        return None
    return order, SCOPES[next(qual for qual in quals if qual in SCOPES)]


def atomic(quals, operand, default_scope=None):
    order, scope = order_of(quals) or ("relaxed", SCOPES[next((q for q in quals if q in SCOPES), default_scope)])
    kind = type_of(quals)
    where = pointer(quals, kind, operand)
    return kind, f"::simt::ptx::atomic<{kind}, ::cuda::thread_scope_{scope}>({where})", f"::cuda::memory_order_{order}"


def elements(quals, kind, operand):
    """(type of the whole, names of its registers) of a vector or a single value."""
    count = next((VECTORS[qual] for qual in quals if qual in VECTORS), 1)
    names = [operand] if count == 1 else operands_of(operand.strip("() "))
    if len(names) != count:
        raise ValueError
    return f"::simt::ptx::Vector<{kind}, {count}>", [value(name) if name != "_" else None for name in names]


def load(quals, operands):
    kind = type_of(quals)
    if order_of(quals):
        kind, where, order = atomic(quals, operands[1])
        return f"::simt::ptx::set({value(operands[0])}, {where}.load({order}))"
    whole, names = elements(quals, kind, operands[0])
    where = pointer(quals, whole, operands[1])
    read = f"::__ldcg({where})" if {"volatile", "cg", "cv"} & set(quals) and "shared" not in quals else f"*{where}"
    taken = "; ".join(f"::simt::ptx::set({name}, simt_v.of[{i}])" for i, name in enumerate(names) if name)
    return f"const auto simt_v = {read}; {taken}"


def store(quals, operands):
    kind = type_of(quals)
    if order_of(quals):
        kind, where, order = atomic(quals, operands[0])
        return f"{where}.store(::simt::ptx::as<{kind}>({value(operands[1])}), {order})"
    whole, names = elements(quals, kind, operands[1])
    values = ", ".join(f"::simt::ptx::as<{kind}>({name})" for name in names)
    return f"*{pointer(quals, whole, operands[0])} = {whole}{{{{{values}}}}}"


ATOMICS = {"add": "fetch_add", "min": "fetch_min", "max": "fetch_max", "and": "fetch_and", "or": "fetch_or",
           "xor": "fetch_xor", "exch": "exchange"}


def update(quals, operands, returns):
    result = operands.pop(0) if returns else None
    kind, where, order = atomic(quals, operands[0], "gpu")
    new = [f"::simt::ptx::as<{kind}>({value(operand)})" for operand in operands[1:]]
    if "cas" in quals:
        call = (f"[&] {{ auto simt_old = {new[0]}; {where}.compare_exchange_strong(simt_old, {new[1]}, {order}); "
                f"return simt_old; }}()")
    else:
        method = ATOMICS[next(qual for qual in quals if qual in ATOMICS)]
        call = f"{where}.{method}({new[0]}, {order})"
    return f"::simt::ptx::set({value(result)}, {call})" if result and result != "_" else call


def scope_of_wait(quals):
    if "relaxed" in quals:
        raise ValueError
    return "::simt::Scope::Cluster" if "cluster" in quals else "::simt::Scope::Block"


def arrive(quals, operands):
    if "relaxed" in quals:
        raise ValueError
    state, where, *count = operands if not operands[0].startswith("[") else ["_", *operands]
    last = value(count[0]) if count else "1"
    counts = f"1, {last}" if "expect_tx" in quals else f"{last}, 0"
    call = f"::simt::ptx::arrive({address(where)}, {counts})"
    return call if state == "_" else f"::simt::ptx::set({value(state)}, {call})"


def wait(name):
    def translate(quals, operands):
        return (f"::simt::ptx::set({value(operands[0])}, ::simt::ptx::{name}({address(operands[1])}, "
                f"{value(operands[2])}, {scope_of_wait(quals)}))")
    return translate


def async_copy(quals, operands):
    size = value(operands[2])
    read = value(operands[3]) if len(operands) > 3 and "L2::cache_hint" not in quals else size
    return (f"::__pipeline_memcpy_async(::simt::ptx::shared<void>({address(operands[0])}), "
            f"::simt::ptx::global<void>({address(operands[1])}), {size}, {size} - ({read}))")


def bulk_load(_, operands):
    return (f"::simt::bulk_load(::simt::ptx::local({address(operands[0])}), ::simt::ptx::global<void>("
            f"{address(operands[1])}), {value(operands[2])}, ::simt::ptx::local({address(operands[3])}), "
            "std::source_location::current())")


def bulk_store(_, operands):
    return (f"::simt::bulk_store(::simt::ptx::global<void>({address(operands[0])}), ::simt::ptx::local("
            f"{address(operands[1])}), {value(operands[2])}, std::source_location::current())")


def binary(sign):
    def translate(quals, operands):
        kind = type_of(quals)
        left, right = (f"::simt::ptx::as<{kind}>({value(operand)})" for operand in operands[1:3])
        return f"::simt::ptx::set({value(operands[0])}, static_cast<{kind}>({left} {sign} {right}))"
    return translate


def multiply(quals, operands):
    """mul and mad, of floats, low halves or wide."""
    kind = type_of(quals)
    if "hi" in quals:
        raise ValueError
    of = {"std::uint32_t": "std::uint64_t", "std::int32_t": "std::int64_t"}[kind] if "wide" in quals else kind
    values = [f"::simt::ptx::as<{kind}>({value(operand)})" for operand in operands[1:3]]
    if len(operands) > 3:
        values.append(f"::simt::ptx::as<{of}>({value(operands[3])})")
    total = f"static_cast<{of}>({values[0]}) * {values[1]}" + (f" + {values[2]}" if len(values) > 2 else "")
    if kind in ("float", "double") and len(values) > 2:
        total = f"std::fma({', '.join(values)})"
    return f"::simt::ptx::set({value(operands[0])}, static_cast<{of}>({total}))"


COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">",
            "hs": ">="}


def compare(quals, operands):
    if len(operands) != 3:
        raise ValueError
    return binary(COMPARED[quals[0]])(quals, operands).replace(f"static_cast<{type_of(quals)}>", "bool")


def select(quals, operands):
    kind = type_of(quals)
    yes, no = (f"::simt::ptx::as<{kind}>({value(operand)})" for operand in operands[1:3])
    return f"::simt::ptx::set({value(operands[0])}, {value(operands[3])} ? {yes} : {no})"


def move(quals, operands):
    return f"::simt::ptx::set({value(operands[0])}, {value(operands[1])})"


def to_shared(_, operands):
    return (f"::simt::ptx::set({value(operands[0])}, "
            f"::simt::shared_address(::simt::ptx::global<void>({value(operands[1])})))")


def of_float(call):
    return lambda quals, operands: (f"::simt::ptx::set({value(operands[0])}, "
                                    f"{call}(::simt::ptx::as<float>({value(operands[1])})))")


def elect(_, operands):
    predicate = operands[0].split("|")[-1]
    return f"::simt::ptx::set({value(predicate)}, ::simt::ptx::elect({value(operands[1])}))"


def fixed(code):
    return lambda _, operands: code.format(*map(value, operands))


def nothing(_, operands):
    return "(void)0"


HERE = "std::source_location::current()"
OF_CTA = r"(\.shared(::cta)?)?"
TABLE = (
    (r"ld(\.[\w:]+)+", load),
    (r"st(?!\.async)(\.[\w:]+)+", store),
    (r"atom(\.[\w:]+)+", lambda quals, operands: update(quals, operands, True)),
    (r"red(?!\.async)(\.[\w:]+)+", lambda quals, operands: update(quals, operands, False)),
    (r"cp\.async\.c[ag]\.shared(::cta)?\.global(\.L2::\w+)*", async_copy),
    (r"cp\.async\.commit_group", fixed("::__pipeline_commit()")),
    (r"cp\.async\.wait_group", fixed("::__pipeline_wait_prior({0})")),
    (r"cp\.async\.wait_all", fixed("::__pipeline_commit(); ::__pipeline_wait_prior(0)")),
    (r"cp\.async\.bulk\.shared::(cluster|cta)\.global\.mbarrier::complete_tx::bytes(\.L2::cache_hint)?", bulk_load),
    (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group(\.L2::cache_hint)?", bulk_store),
    (r"cp\.async\.bulk\.commit_group", fixed("::simt::commit_bulk_stores()")),
    (r"cp\.async\.bulk\.wait_group(\.read)?", fixed(f"::simt::wait_bulk_stores({{0}}, {HERE})")),
    (rf"mbarrier\.init{OF_CTA}\.b64", lambda _, operands: (
        f"::simt::barrier_init(::simt::ptx::local({address(operands[0])}), {value(operands[1])}, {HERE})")),
    (rf"mbarrier\.inval{OF_CTA}\.b64", nothing),
    (rf"mbarrier\.expect_tx(\.relaxed)?(\.\w+)?{OF_CTA}\.b64", lambda _, operands: (
        f"::simt::barrier_expect(::simt::ptx::local({address(operands[0])}), {value(operands[1])}, {HERE})")),
    (r"mbarrier\.arrive(\.expect_tx)?(\.\w+)*(\.shared(::\w+)?)?\.b64", arrive),
    (rf"mbarrier\.try_wait(\.\w+)*{OF_CTA}\.b64", wait("wait")),
    (rf"mbarrier\.test_wait(\.\w+)*{OF_CTA}\.b64", wait("test")),
    (r"fence\.mbarrier_init\.release\.cluster", fixed("::simt::fence_barrier_init()")),
    (r"fence\.proxy\.async(\.\w+(::\w+)?)?", fixed("::simt::ptx::fence_proxy_async()")),
    (r"fence(\.(acq_rel|sc|acquire|release))?\.\w+", lambda quals, _: FENCES[quals[-1]]),
    (r"membar\.\w+", lambda quals, _: FENCES[quals[-1]]),
    (r"(bar|barrier)\.sync(\.aligned)?", lambda _, operands: {("0",): "::__syncthreads()"}[tuple(operands)]),
    (r"bar\.warp\.sync", fixed("::__syncwarp({0})")),
    (r"barrier\.cluster\.arrive(\.release)?(\.aligned)?", fixed(f"::simt::cluster_arrive({HERE})")),
    (r"barrier\.cluster\.arrive\.relaxed(\.aligned)?",
     fixed(f"::simt::cluster_arrive({HERE}, ::simt::Publishes::BarrierInits)")),
    (r"barrier\.cluster\.wait(\.acquire)?(\.aligned)?", fixed(f"::simt::cluster_wait({HERE})")),
    (r"mapa(\.shared::cluster)?\.u32", lambda _, operands: (
        f"::simt::ptx::set({value(operands[0])}, ::simt::ptx::mapa({value(operands[1])}, {value(operands[2])}))")),
    (r"griddepcontrol\.wait", fixed("::lnc::grid_dependency_wait()")),
    (r"griddepcontrol\.launch_dependents", fixed("::lnc::launch_dependents()")),
    (r"elect\.sync", elect),
    (r"cvta\.to\.shared\.u(32|64)", to_shared),
    (r"cvta\.to\.global\.u(32|64)", move),
    (r"mov\.\w+", move),
    (r"add(\.\w+)+", binary("+")),
    (r"sub(\.\w+)+", binary("-")),
    (r"and\.\w+", binary("&")),
    (r"or\.\w+", binary("|")),
    (r"xor\.\w+", binary("^")),
    (r"shl\.\w+", binary("<<")),
    (r"shr\.\w+", binary(">>")),
    (r"(mul|mad|fma)(\.\w+)+", multiply),
    (r"setp\.\w+\.\w+", compare),
    (r"selp\.\w+", select),
    (r"bra(\.uni)?", lambda _, operands: f"goto simt_l_{operands[0].lstrip('$')}"),
    (r"ex2\.approx(\.ftz)?\.f32", of_float("std::exp2")),
    (r"lg2\.approx(\.ftz)?\.f32", of_float("std::log2")),
    (r"tanh\.approx\.f32", of_float("std::tanh")),
    (r"rsqrt\.approx(\.ftz)?\.f32", of_float("1.0f / std::sqrt")),
    (r"rcp\.(approx|rn)(\.ftz)?\.f32", of_float("1.0f / ")),
    (r"sqrt\.(approx|rn)(\.ftz)?\.f32", of_float("std::sqrt")),
    (r"nanosleep\.u32", fixed("::__nanosleep({0})")),
    (r"trap", fixed("::__trap()")),
    (r"createpolicy\.fractional(\.L2::\w+)+\.b64", lambda _, operands: f"::simt::ptx::set({value(operands[0])}, 0)"),
    (r"(prefetch|prefetchu|discard|applypriority)(\.[\w:]+)+", nothing),
)


# --- A whole source ---


def edits(path, source, code):
    """[(start, end, C++)] for the asm statements of a source; `code` is the source without comments and texts.
    Raises RequestError."""
    found = []
    for match in re.finditer(r"\basm\b(?:\s*(?:volatile|__volatile__))?", code):
        try:
            end, template, operands = statement(source, match.end())
            found.append((match.start(), end, translated(template, operands)))
        except PtxError as error:
            raise RequestError(f"{path}:{line_of(source, match.start())}: {error}") from None
    return found
