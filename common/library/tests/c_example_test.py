"""The C example of README.md is C99, links with the library, and runs; so lnc.h is C, too.

Usage: c_example_test.py COMPILER LIBRARY      LIBRARY: the CPU backend's liblnc.so
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
MAIN = """
int main(void) { /* bfloat16 is the upper half of a float: 0x3f80 is 1, 0x4040 is 3 */
  unsigned short x[4] = {0x3f80, 0x4040, 0x4040, 0x3f80}, y[4];
  float mean[2], rstd[2];
  if (normalise(x, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) != 0) return 1;
  printf("%.3f %.3f %04x %04x %04x %04x\\n", mean[0], rstd[1], y[0], y[1], y[2], y[3]);
  return normalise(NULL, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) == 0;
}
"""


def main(compiler, library):
    example, = re.findall(r"^```c\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"),
                          re.MULTILINE | re.DOTALL)
    library = Path(library).resolve()
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, "example")
        program.with_suffix(".c").write_text(example + MAIN, encoding="utf-8")
        subprocess.run([compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
                        f"-I{ROOT}", program.with_suffix(".c"), "-x", "none", library,
                        f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
        result = subprocess.run([program], capture_output=True, text=True)
    print(result.stdout, result.stderr, sep="")
    assert result.returncode == 0, result.returncode
    assert result.stdout == "2.000 1.000 bf80 3f80 3f80 bf80\n"
    assert result.stderr == "x is null\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
