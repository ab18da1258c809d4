from common.results.pictures import COMPUTE, LOAD, PURPLE, STORE, WAIT, WHITE, Picture

LATENCY, EACH, SUMS, DX, SEND, MESSAGE, RECEIVE = 4, 1, 3, 3, 1.2, 6.6, 1.2  # times, of no GPU
END, ROWS = 38, 9


def picture(kStages=6, kAnswer=2):
    """One block over time. Its warps compute the sums of a row, then dx of the row three before it. After the sums of
    row n, the warp that exchanges sends them and receives the answer for row n - 2. The ring has six slots: a row
    stays in its slot from its arrival until its dx, four rows at a time, and the other two slots are being filled."""
    p, unit, behind = Picture(370), 10, kAnswer + 1
    asked, there, summed, done, known = {}, {}, {}, {}, {}
    warps, exchange, links, now, free = [], [], [], 0, 0
    for n in range(ROWS):
        asked[n] = 0 if n < kStages else summed[n - 2]
        there[n] = max(asked[n] + LATENCY, there[n - 1] + EACH if n else 0)
        start = max(now, there[n])
        now = summed[n] = start + SUMS
        warps.append((start, now, COMPUTE, f"Σ{n}"))
        sent = max(now, free) + SEND
        exchange.append((sent - SEND, sent, PURPLE, "s"))
        links.append((sent, sent + MESSAGE, PURPLE, f"row {n}"))
        if n >= kAnswer:
            free = known[n - kAnswer] = max(sent, links[n - kAnswer][1]) + RECEIVE
            exchange.append((free - RECEIVE, free, PURPLE, "r"))
        if n >= behind:
            start = max(now, known[n - behind])
            now = done[n - behind] = start + DX
            warps.append((start, now, STORE, f"dx{n - behind}"))
    p.text(88, 12, "rows of one block")
    p.text(470, 12, "time →", "end")
    p.bars(26, "warps", warps, unit=unit, end=END)
    p.bars(56, "exchange", exchange, unit=unit, end=END)
    for lane in range(behind):
        p.bars(86 + 24 * lane, "" if lane else "on the link", links[lane::behind], unit=unit, end=END, height=20)
    for slot in range(kStages):
        bars = []
        for n in range(slot, ROWS, kStages):
            begin, stop = summed[n] - SUMS, done.get(n, END + DX)
            bars += [(asked[n], there[n], LOAD, str(n)), (there[n], begin, WHITE, ""),
                     (begin, summed[n], COMPUTE, str(n)), (summed[n], stop - DX, WAIT, "kept"),
                     (stop - DX, stop, STORE, str(n))]
        p.bars(164 + 22 * slot, f"slot {slot}", [bar for bar in bars if bar[0] < min(bar[1], END)],
               unit=unit, end=END, height=18)
    p.legend(308, (LOAD, "on its way"), (WHITE, "there"), (COMPUTE, "sums"), (WAIT, "kept"), (STORE, "dx"), gap=12)
    p.legend(330, (PURPLE, "message: s is sent, r received"))
    p.text(8, 356, f"After the sums of row n comes dx of row n - {behind}.", bold=True)
    return p
