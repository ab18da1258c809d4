"""Records in, tables out: what was measured, read in one place and written into the texts.

problems.py   what is measured: shapes, types, options, and the named sets of them
records.py    one record: its fields, and the one reader of JSON lines and of committed tables (store.py)
archive.py    adds new records to a committed table
chapters.py   what the programs say of themselves, and the map of the chapters
device.py     one device's records joined with the chapters
tables.py     the tables of the READMEs and the chapters, each with its sentence in templates/
"""
