def write(root, out): out.write_text("")
