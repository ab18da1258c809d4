"""The figures of a trace, the turns of one block that lab.trace has: its sectors, turns and slots.

Each draws into axes that it is given. A trace's fields are those of common/watch/README.md.
"""

from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from . import MAP

SECTOR = 32  # bytes
ALL_LANES = 0xFFFFFFFF
LIT = "#ffe8c2"  # a sector that is fetched
GRID = "#cccccc"

# What a warp does, as a timeline shows it: a colour and a height, so that greys tell it too.
DOES = {"loads of x": ("#0072B2", 0.8), "shuffles": ("#E69F00", 0.45), "stores to shared": ("#D55E00", 0.8),
        "loads of shared": ("#009E73", 0.62), "all else": ("#999999", 0.3)}
WAITS = "#dddddd"
SLOT = {"asked for": ("#f7d9a8", "///"), "there": ("#56B4E9", ""), "being read": ("#0072B2", "")}


# --- What an event says ---


def events_of(trace, launch=0, **fields):
    """[(number, event), …]: those of a launch that have these fields."""
    return [(i, event) for i, event in enumerate(trace["launches"][launch]["events"])
            if all(event.get(key) == value for key, value in fields.items())]


def lanes_of(event):
    return [lane for lane in range(32) if event.get("lanes", ALL_LANES) >> lane & 1]


def elements_of(event):
    """{lane: the number of the element that it begins at}"""
    at, lanes = event["at"], lanes_of(event)
    if isinstance(at, list):
        return dict(zip(lanes, at))
    return {lane: at + event.get("step", 0) * (lane - lanes[0]) for lane in lanes}


def sectors_of(trace, event):
    """{sector: [lane, …]} of a request to device memory: a sector's number is that of its 32 bytes in the tensor."""
    tensor = trace["memory"][event["in"]]
    sectors = {}
    for lane, element in elements_of(event).items():
        begin = tensor["starts_at"] + element * tensor["element_bytes"]
        for sector in range(begin // SECTOR, (begin + event["each"] - 1) // SECTOR + 1):
            sectors.setdefault(sector, []).append(lane)
    return sectors


# --- Sectors ---


def draw_sectors(axes, trace, event, rows=None):
    """A request in the matrix that it reads: a cell for each sector, a stripe for each lane's element.

    Rows of the matrix must begin at a sector. `rows`: how many are drawn. Returns how many sectors it takes.
    """
    from matplotlib.cm import ScalarMappable

    tensor = trace["memory"][event["in"]]
    count, cols = tensor["shape"]
    count = rows or count
    across = cols * tensor["element_bytes"] // SECTOR
    shade = ScalarMappable(Normalize(0, 31), MAP)
    sectors = sectors_of(trace, event)
    for row in range(count):
        for i in range(across):
            lit = row * across + i in sectors
            axes.add_patch(Rectangle((i, row), 1, 1, facecolor=LIT if lit else "white", edgecolor=GRID, linewidth=0.5))
    for lane, element in elements_of(event).items():
        left = element % cols * tensor["element_bytes"] / SECTOR
        axes.add_patch(Rectangle((left, element // cols + 0.1), event["each"] / SECTOR, 0.8, linewidth=0,
                                 facecolor=shade.to_rgba(lane)))
    axes.set(xlim=(0, across), ylim=(count, 0), xlabel=f"sectors of a row of {event['in']}", ylabel="row",
             xticks=[i + 0.5 for i in range(across)], xticklabels=range(across))
    axes.grid(False)
    axes.tick_params(length=0)
    return len(sectors)


def draw_lanes(figure, axes):
    """The scale of the lanes' colours, beside the axes."""
    from matplotlib.cm import ScalarMappable

    figure.colorbar(ScalarMappable(Normalize(0, 31), MAP), ax=axes, label="lane", ticks=[0, 8, 16, 24, 31], pad=0.01)


# --- Turns ---


def does(trace, event):
    """Which name of DOES an event goes by."""
    space = trace["memory"].get(event.get("in"), {}).get("space")
    if event["do"] == "shuffle":
        return "shuffles"
    if event["do"] == "load" and event["in"] == "x":
        return "loads of x"
    if event["do"] in ("load", "store") and space == "shared":
        return "stores to shared" if event["do"] == "store" else "loads of shared"
    return "all else"


def draw_turns(axes, trace, stop, names=()):
    """Who does what in a launch's first `stop` events: a line for each warp, grey where it waits at a barrier.

    `names`: what to write at the barriers. Returns the numbers of the barriers' events.
    """
    launch = trace["launches"][0]
    barriers = [i for i, _ in events_of(trace, do="barrier") if i < stop]
    for number in barriers:
        for warp, since in enumerate(launch["events"][number]["since"]):
            axes.add_patch(Rectangle((since, warp - 0.4), number - since, 0.8, facecolor=WAITS, linewidth=0))
        axes.axvline(number + 0.5, color="black", linewidth=1.4)
    for number, event in enumerate(launch["events"][:stop]):
        if "warp" not in event or event["do"] in ("wait", "go on"):
            continue
        colour, height = DOES[does(trace, event)]
        axes.add_patch(Rectangle((number, event["warp"] - height / 2), 1, height, facecolor=colour, linewidth=0))
    for number, name in zip(barriers, names):
        axes.annotate(name, (number, -0.75), ha="right", fontsize=8, annotation_clip=False)
    axes.set(xlim=(0, stop), ylim=(launch["warps"] - 0.4, -0.6), yticks=range(launch["warps"]), ylabel="warp",
             xlabel="event, in the order of the machine")
    axes.grid(False)
    axes.legend(handles=[Rectangle((0, 0), 1, 1, facecolor=colour, label=name)
                         for name, (colour, _) in (*DOES.items(), ("waits", (WAITS, 0)))],
                ncols=len(DOES) + 1, loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=8, handlelength=1)
    return barriers


# --- Slots of a ring ---


def slots_of(trace, warp):
    """[(slot, the element that comes first, asked for, arrived, waited for, read last), …] of a warp's bulk loads.

    A slot is a number from 0 on, in the order of the places in shared memory; a time is an event's number. Each
    mbarrier is for one slot.
    """
    launch = trace["launches"][0]
    copies = [pair for pair in events_of(trace, do="bulk load") if pair[1]["warp"] == warp]
    places = sorted({copy["to_at"] for _, copy in copies})
    found = []
    for asked, copy in copies:
        arrives = events_of(trace, do="copy arrives", copy=copy["copy"])[0][0]
        later = [i for i, other in copies if i > asked and other["to_at"] == copy["to_at"]]
        until = min(later, default=len(launch["events"]))
        waited = next(i for i, event in events_of(trace, do="go on", mbarrier=copy["mbarrier"]) if i > asked)
        slot = range(copy["to_at"], copy["to_at"] + copy["bytes"])
        reads = [i for i, event in events_of(trace, do="load", **{"in": copy["to_in"]})
                 if waited < i < until and event["at"] in slot]
        found.append((places.index(copy["to_at"]), copy["at"], asked, arrives, waited, max(reads)))
    return found


def draw_slots(axes, trace, warp=0):
    """What the slots of a warp's ring hold over time, a line for each slot; in each span the row that comes."""
    cols = trace["memory"]["x"]["shape"][1]
    spans = slots_of(trace, warp)
    for slot, first, asked, arrives, waited, read in spans:
        for name, begin, end in (("asked for", asked, arrives), ("there", arrives, waited),
                                 ("being read", waited, read + 1)):
            colour, hatch = SLOT[name]
            axes.add_patch(Rectangle((begin, slot - 0.38), end - begin, 0.76, facecolor=colour, hatch=hatch,
                                     edgecolor="white", linewidth=0))
        axes.text((asked + arrives) / 2, slot, f"row {first // cols}", ha="center", va="center", fontsize=7,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    slots = 1 + max(span[0] for span in spans)
    axes.set(xlim=(0, len(trace["launches"][0]["events"])), ylim=(slots - 0.4, -0.6), yticks=range(slots),
             ylabel="slot")
    axes.grid(False)


def label_slots(axes):
    """What the colours of draw_slots stand for, below the axes."""
    axes.legend(handles=[Rectangle((0, 0), 1, 1, facecolor=colour, hatch=hatch, edgecolor="white", label=name)
                         for name, (colour, hatch) in SLOT.items()],
                ncols=len(SLOT), loc="upper center", bbox_to_anchor=(0.5, -0.3), fontsize=8)
