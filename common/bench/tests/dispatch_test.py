"""At every measured shape the dispatch's choice is within 3 % of the fastest chapter.

Usage: dispatch_test.py LIBRARY [DATA]          LIBRARY: the CPU backend's liblnc.so, whose dispatch
       dispatch_test.py --table LIBRARY [DATA]  sees an H100. --table: shows every shape. DATA: another
                                                file than h100.jsonl, of any Hopper GPU.

A line of the table in common/library/dispatch.cpp starts from what --table shows: where another chapter than
the choice is the fastest, and by how much. The choices must be those of notebooks/data/chapters.json, which
other scripts read.
"""

import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "common/python/layernorm_chapters"), str(ROOT / "common/bench")]
from library import DTYPES, KINDS, BackwardArgs, ForwardArgs, Library, Problem  # noqa: E402
from catalogue import REMEDY, dispatched, load_catalogue  # noqa: E402
from measurements import Problem as Shape  # noqa: E402
from measurements import load, problem_of  # noqa: E402
from peers import DTYPES as DTYPE_NAMES  # noqa: E402

TOLERANCE = 0.03
OPTIONS = {"affine", "mixed"}  # without a fusion, and with the groups that a chapter chooses itself
ALIGNED = 1 << 20  # an address for a plan, which reads nothing there


class Pass(NamedTuple):
    direction: str
    from_y: bool
    shape: Shape

    def __str__(self):
        words = [self.direction, "from y" * self.from_y, self.shape.kind, str(self.shape), self.shape.words]
        return " ".join(word for word in words if word)


def passes(records, from_y):
    """{Pass: {chapter: microseconds}}, of the plain passes among the records; from_y: the ids of
    the chapters that start from y, which compete with no other."""
    found = {}
    for record in records:
        if record.get("backend") == "cuda" and set(record["options"]) <= OPTIONS and "median_us" in record:
            one = Pass(record["direction"], record["chapter"] in from_y, problem_of(record))
            found.setdefault(one, {})[record["chapter"]] = record["median_us"]
    return found


def choice(library, one):
    """The id of the chapter that the dispatch gives to aligned tensors of this pass."""
    shape, options = one.shape, dict(one.shape.options)
    dtype = DTYPES[DTYPE_NAMES[shape.dtype]]
    parameters = DTYPES["float32"] if options.get("mixed") else dtype
    problem = Problem(KINDS[shape.kind], dtype, parameters, 1e-5, shape.rows, shape.cols)
    weight = ALIGNED if options.get("affine", True) else None
    bias = weight if shape.kind == "layer" else None
    if one.direction == "forward":
        args = ForwardArgs(problem=problem, x=ALIGNED, weight=weight, bias=bias, y=ALIGNED,
                           mean=ALIGNED, rstd=ALIGNED)
    else:
        args = BackwardArgs(problem=problem, dy=ALIGNED, x=None if one.from_y else ALIGNED,
                            y=ALIGNED if one.from_y else None, weight=weight, bias=bias,
                            mean=ALIGNED, rstd=ALIGNED, dx=ALIGNED)
    return library.plan(args).chapter.decode()


def judge(times, chosen):
    """What is wrong with a choice, in words; nothing where it is good enough."""
    best = min(times, key=times.get)
    if chosen not in times:
        return f"{chosen} is chosen, and not measured there"
    if times[chosen] > (1 + TOLERANCE) * times[best]:
        return (f"{chosen} is chosen, and needs {times[chosen]:.2f} us; {best} needs "
                f"{times[best]:.2f}")
    return ""


def row(one, times, chosen):
    others = sorted((us, chapter) for chapter, us in times.items() if chapter != chosen)
    shown = [f"{chapter} {us:.2f} us" + (f" ({us / times[chosen]:.2f})" if chosen in times else "")
             for us, chapter in others[:3]]
    us = f"{times[chosen]:.2f} us" if chosen in times else "not measured"
    return f"{str(one):40} {chosen} {us:12}  then {', '.join(shown) or 'nothing'}"


def test_the_judge():
    times = {"fwd01": 10.0, "fwd02": 10.2, "fwd03": 10.4}
    assert not judge(times, "fwd01") and not judge(times, "fwd02")
    assert judge(times, "fwd03") == "fwd03 is chosen, and needs 10.40 us; fwd01 needs 10.00"
    assert judge(times, "fwd04") == "fwd04 is chosen, and not measured there"
    record = {"chapter": "bwd07", "direction": "backward", "kind": "layer", "dtype": "f32", "rows": 1, "cols": 2,
              "options": {}, "median_us": 3.0, "backend": "cuda"}
    grouped = {**record, "options": {"group": 2}}
    emulated = {**record, "backend": "cpu"}
    (one, measured), = passes([record, grouped, emulated], {"bwd07"}).items()
    assert one.from_y and measured == {"bwd07": 3.0}


def main(path, data=ROOT / "notebooks/data/h100.jsonl", *, table=False):
    test_the_judge()
    library = Library(Path(path).resolve())
    if library.backend != "cpu":
        sys.exit(f"{path} asks the GPU that is here; the table is for an H100")
    catalogue = load_catalogue()
    from_y = {chapter["id"] for chapter in catalogue["chapters"] if chapter["from_y"]}
    named = dispatched(catalogue)
    measured = passes(load(data).only().records, from_y)
    wrong = []
    for one, times in sorted(measured.items()):
        chosen = choice(library, one)
        if table:
            print(row(one, times, chosen))
        if problem := judge(times, chosen):
            wrong.append(f"{one}: {problem}")
        if chosen not in named:
            wrong.append(f"{one}: {chosen} is chosen, which chapters.json does not name; {REMEDY}")
    print("\n".join([*wrong, f"{len(measured)} shapes, {len(wrong)} with a slow choice"]))
    return 1 if wrong or not measured else 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--table"]
    if not 1 <= len(arguments) <= 2:
        sys.exit(__doc__)
    sys.exit(main(*arguments, table="--table" in sys.argv))
