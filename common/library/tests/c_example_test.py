"""The C example of the library's README.md is C99, links with the library, and runs; so lnc.h is C, too."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "common/library/README.md"
MAIN = """
int main(void) { /* bfloat16 is the upper half of a float: 0x3f80 is 1, 0x4040 is 3 */
  unsigned short x[4] = {0x3f80, 0x4040, 0x4040, 0x3f80}, y[4];
  float mean[2], rstd[2];
  if (normalise(x, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) != 0) return 1;
  printf("%.3f %.3f %04x %04x %04x %04x\\n", mean[0], rstd[1], y[0], y[1], y[2], y[3]);
  return normalise(NULL, NULL, NULL, y, mean, rstd, 2, 2, NULL, 0, NULL) == 0;
}
"""


def test_the_example_of_the_readme_is_c_and_runs(compiler, library, tmp_path):
    example, = re.findall(r"^```c\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    program = tmp_path / "example"
    program.with_suffix(".c").write_text(example + MAIN, encoding="utf-8")
    subprocess.run([compiler, "-x", "c", "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror",
                    f"-I{ROOT}", program.with_suffix(".c"), "-x", "none", library,
                    f"-Wl,-rpath,{library.parent}", "-o", program], check=True)
    result = subprocess.run([program], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "2.000 1.000 bf80 3f80 3f80 bf80\n", "x is null\n")
