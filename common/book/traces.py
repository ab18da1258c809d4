def write(programs, out): pass
