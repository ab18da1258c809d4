"""Chapter zero's complete program compiles as it is printed, and runs where a GPU is."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LESSON = ROOT / "chapters/copy00_machine/notes.md"
FIND_NVCC = f". '{ROOT}/common/setup/cuda.sh' && find_nvcc"


def program():
    blocks = re.findall(r"^```cpp\n(.*?)^```", LESSON.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (whole,) = [block for block in blocks if "int main()" in block]
    return whole


def promised_output():
    (said,) = re.findall(r"The program prints\s+`(.*?)`", LESSON.read_text(encoding="utf-8"))
    return said


def test_the_lesson_says_what_the_program_prints():
    assert promised_output().startswith("no error: y[999] is ")


def test_the_first_program_compiles_and_copies(tmp_path):
    nvcc = subprocess.run(["bash", "-c", FIND_NVCC], capture_output=True, text=True).stdout.strip()
    if not nvcc:
        pytest.skip("nvcc is not installed")
    (tmp_path / "copy.cu").write_text(program(), encoding="utf-8")
    compiled = subprocess.run([nvcc, "-o", tmp_path / "copy", tmp_path / "copy.cu"], capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
    assert "warning" not in compiled.stderr
    try:
        gpu = subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0
    except FileNotFoundError:
        gpu = False
    if not gpu:
        pytest.skip("it compiles; without a GPU it is not run")
    ran = subprocess.run([tmp_path / "copy"], capture_output=True, text=True)
    assert ran.stdout.strip() == promised_output()
