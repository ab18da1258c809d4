"""Records in, tables out: README.md."""
