"""The tables of training, of the host's time, of the dispatch and of the source: what each shows."""

import json
import re
import textwrap
from pathlib import Path

from common.results import peer_figures
from common.results.chapters import KINDS
from common.results.peer_tables import WIDTHS_COMMAND, bf16_width_rows, pairs_of_layer_norm
from common.results.pictures import PictureError, pictures_of
from common.results.records import MissingData, number, read_records
from common.results.rendering import table

DISPATCH = Path("common/library/dispatch.json")


class MarkerError(Exception):
    """A marker that means nothing; the message is a sentence."""


def read_lines_with(path, *fields, schema):
    """The records of a file that have these fields; none where there is no such file."""
    try:
        return read_records(path, lambda one: one if all(field in one for field in fields) else None, schema=schema)[0]
    except MissingData:
        return []


@table("training", "make library && python3 -m common.campaign.gpt_training")
def training(results):
    """a GPT's training with each norm, and its figure"""
    rows = [row for kind in KINDS for row in results.training_rows(kind)]
    drawn = [row for row in rows if row["kind"] == "layer"]
    return {"rows": rows, "image": drawn and peer_figures.training_words(drawn)} if rows else None


def host_records(results, what):
    """The calls, or the blocks, of the file that has the most contenders; of equals the first, by name: the H100's."""
    runs = [[one for one in read_lines_with(path, "host", "contender", schema=2) if one["host"] == what]
            for path in sorted((results.root / "notebooks/data").glob("host_*.csv"))]
    return max(runs, key=lambda records: len({record["contender"] for record in records}), default=[])


@table("host calls", "make library && python3 -m common.campaign.host_time")
def host_calls(results):
    """the host's time of a call of a norm, by each way to call it"""
    records = host_records(results, "call")
    found = {}
    for one in records:
        found.setdefault((one["kind"], one["pass"]), {})[one["contender"]] = one["host_us"]
    names = list(dict.fromkeys(one["contender"] for one in records))
    rows = []
    for (kind, what), own in found.items():
        times = [own[name] for name in names]
        rows.append([KINDS[kind], what, *map(number, times), *(f"{time / times[0]:.2f}" for time in times[1:])])
    heads = ["norm", "pass", *(f"{name}, µs" for name in names), *(f"{name} / torch" for name in names[1:])]
    return {"heads": heads, "rows": rows, "one": records[0], "records": records} if records else None


@table("host blocks", "make library && python3 -m common.campaign.host_time")
def host_blocks(results):
    """a transformer block's step, by each way to call its norms"""
    records = host_records(results, "block")
    torchs = {(one["model"], one["batch"]): one for one in records if one["contender"] == "torch"}
    return {"pairs": [(one, torchs[one["model"], one["batch"]]) for one in records], "records": records,
            "names": {"gpt": "GPT, layer norm", "llama": "Llama with QK-norm, RMS norm"}} if records else None


@table("dispatch")
def dispatch(results):
    """the rules by which the library chooses a kernel"""
    rules = json.loads((results.root / DISPATCH).read_text(encoding="utf-8"))["rules"]
    return {"rules": rules, "kernels": results.kernels}


@table("source <file> <name>")
def source(results, words):
    """a function or a type of a source file, from the comment above it to its end, as code"""
    path, _, name = words.partition(" ")
    try:
        lines = (results.root / path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise MarkerError(f"cannot read {path}: {error.strerror}") from error
    starts = "template |__device__ |struct |class |inline |constexpr "
    declares = re.compile(rf"( *)(?:{starts}).*\b{re.escape(name)}\s*[({{]")
    begins = [at for at, line in enumerate(lines) if declares.match(line)]
    if not begins:
        raise MarkerError(f"{path} does not declare {name}")
    begin = end = begins[0]  # of overloads the first
    indent = declares.match(lines[begin])[1]
    while begin and re.match(rf"{indent}(///|template\b)", lines[begin - 1]):
        begin -= 1
    while not re.match(rf"{indent}}}", lines[end]) and not (end == begins[0] and lines[end].endswith("}")):
        end += 1
    return {"path": path, "lines": [line.removeprefix(indent) for line in lines[begin : end + 1]]}


EXERCISE = re.compile(r"\s*// (end of )?exercise")  # marks for `make new`, not for a reader


@table("part <chapter> <words>")
def part(results, request):
    """the lines of a chapter's kernel.cu from one empty line to the next that contain these words, as code"""
    name, _, words = request.partition(" ")
    if name not in results.kernels:
        raise MarkerError(f"the table 'part {request}' names no kernel")
    text = (results.root / results.kernels[name].file).read_text(encoding="utf-8")
    found = [lines for lines in text.split("\n\n") if words and words in lines]
    if len(found) != 1:
        raise MarkerError(f"{len(found)} parts of {name}'s kernel.cu contain '{words}': one must")
    lines = [line for line in found[0].strip("\n").split("\n") if not EXERCISE.fullmatch(line)]
    return {"lines": textwrap.dedent("\n".join(lines)).split("\n")}


# --- Pictures ---


@table("picture peers", "make peers", name="peers.svg", rows_of=pairs_of_layer_norm, words=peer_figures.peers_words)
@table("picture widths", WIDTHS_COMMAND, name="widths.svg", rows_of=bf16_width_rows, words=peer_figures.widths_words)
def picture(results, name, rows_of, words):
    """our time over each peer's on the problems of `make peers`; or over the widths, with our share of the roof"""
    rows = rows_of(results)
    return {"name": name, "words": words(rows)} if rows else None


@table("picture <chapter> <name>")
def lesson_picture(results, request):
    """a picture of a chapter's picture.py with its alternative text; without a name the first, `picture`"""
    chapter, _, name = request.partition(" ")
    if chapter not in results.kernels:
        raise MarkerError(f"the table 'picture {request}' names no kernel")
    directory, name = results.kernels[chapter].directory, name or "picture"
    try:
        words, _ = pictures_of(results.root / directory)[name]
    except KeyError:
        raise MarkerError(f"{directory}/picture.py has no function {name}") from None
    except PictureError as error:
        raise MarkerError(str(error)) from error
    return {"name": name, "words": words}
