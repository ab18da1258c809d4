from common.results.machine_tables import read_figures
from common.results.pictures import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture
from common.results.problems import ROOT
from common.results.records import number


def picture():
    """The machine. A multiprocessor, one of 132, has four schedulers, room for 64 warps, registers, and L1 with shared
    memory. Below it are L2 and device memory, which all multiprocessors share. Beside each memory is how long a load
    waits for it and how fast it is: the further away, the slower."""
    p, value = Picture(358), {name: one["value"] for name, one in read_figures(ROOT).items()}

    def speed(name, memory):
        return f"{number(value[f'latency: {name}'], 2)} cycles\n{number(value[memory], 2)} TB/s"

    p.text(404, 12, "a load waits", "middle")
    p.box(8, 24, 330, 204, fill="#f6f6f6")
    p.text(18, 38, "multiprocessor, one of 132", bold=True)
    p.text(18, 55, "up to 32 blocks share it; a block stays", size=12)
    p.cells(18, 66, 77.5, [("scheduler", ORANGE)] * 4, size=12)
    p.text(18, 101, "each starts one warp's instruction a cycle", size=12)
    p.cells(18, 114, 19.375, [("", GREEN)] * 16, 14)
    p.text(18, 141, "room for 64 warps of 32 lanes: 2048 threads", size=12)
    p.box(18, 156, 120, 60, "registers\n256 KB", GREY)
    p.box(148, 156, 180, 60, "L1 + shared\nmemory, 256 KB", BLUE)
    p.text(404, 164, f"shared: {number(value['latency: shared memory'], 2)} cycles", "middle", size=12)
    p.text(404, 196, speed("L1", "bandwidth: L1, read"), "middle")
    p.arrow((238, 252), (238, 218))
    p.text(228, 240, "sectors of 32 bytes", "end", size=12)
    p.box(58, 254, 280, 36, "L2, 50 MB, for all", PURPLE)
    p.text(404, 272, speed("L2", "bandwidth: L2, read"), "middle")
    p.arrow((238, 312), (238, 292))
    p.box(8, 314, 330, 36, "device memory, 80 GB", GREY)
    p.text(404, 332, speed("device memory", "bandwidth: copy of 1024 MiB"), "middle")
    return p


def sectors():
    """Two requests of 32 lanes. Neighbouring floats lie in 4 sectors, every byte of which is used. Floats that are 8
    apart lie in 32 sectors, and of each only one float of eight is used."""
    p = Picture(166)
    for y, words, items, result in (
            (16, "32 neighbouring floats", [("", BLUE)] * 8, "4 sectors, all 128 bytes used"),
            (96, "32 floats, 8 apart", [("", BLUE)] + [("", GREY)] * 7, "32 sectors, 128 of 1024 bytes used")):
        p.text(8, y, words)
        for sector in range(4):
            p.cells(8 + 112 * sector, y + 14, 13, items)
        p.text(8, y + 52, result, bold=True)
    p.text(456, 121, "…")
    return p
