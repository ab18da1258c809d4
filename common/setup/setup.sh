#!/usr/bin/env bash
# setup.sh [cpu] [cuda] [--with-format] [--with-lint] [--with-tables] [--with-tests] [--with-notebooks] [--with-book]
#   [--with-browser] [--with-torch]
#
# Installs what is missing for that: Debian packages with one call of apt-get, Python wheels into
# .venv, PyTorch (5 GB) into .venv-torch. Where everything is there, it tests a few files, touches no
# network and says nothing. Where it may not install, it prints the command that you need and exits with 2.
set -euo pipefail
cd "$(dirname "$0")/../.."
. common/setup/find.sh
. common/setup/cuda.sh

say() { echo "set-up: $*" >&2; }

refuse() {
  echo "$*" >&2
  exit 2
}

# --- What is missing -----------------------------------------------------------------------------

packages=() # Debian packages
missing=()  # the same, in words
wheels=()   # "GROUP VENV", for venv_install

lacks() {
  packages+=("$1")
  missing+=("$2")
}

check_build() {
  if [ -n "${CXX:-}" ]; then
    command -v "${CXX%% *}" >/dev/null || refuse "CXX=$CXX: there is no such compiler."
  elif ! at_least 11 "$(g++ -dumpfullversion 2>/dev/null)"; then
    lacks g++ 'g++ 11 or newer'
  fi
  at_least 3.22 "$(cmake --version 2>/dev/null)" || lacks cmake 'CMake 3.22 or newer'
  command -v ninja >/dev/null || lacks ninja-build Ninja
  find_header doctest/doctest.h || lacks doctest-dev doctest
  find_header CLI/CLI.hpp || lacks libcli11-dev CLI11
  find_header nlohmann/json.hpp || lacks nlohmann-json3-dev nlohmann-json
}

check_cpu() {
  { find_header boost/context/fiber.hpp && find_library boost_context; } ||
    lacks libboost-context-dev Boost.Context
  find_cuda_headers || check_venv cuda-headers .venv
}

# check_venv GROUP VENV: the environment has what the group lists.
check_venv() { venv_has "$1" "$2" || wheels+=("$1 $2"); }

# check_python GROUP VENV: the reader's own Python has it, or the environment.
check_python() { has_group "${PYTHON:-python3}" "$1" || check_venv "$1" "$2"; }

check() {
  local part wheel
  packages=() missing=() wheels=()
  for part in "$@"; do
    case $part in
      cpu | cuda) check_build ;;&
      cpu) check_cpu ;;
      cuda) find_nvcc >/dev/null ||
        refuse "This needs the CUDA Toolkit, and there is $no_nvcc." ;;
      --with-format | --with-lint) check_venv "${part#--with-}" .venv ;;
      --with-tables | --with-tests | --with-notebooks | --with-book) check_python "${part#--with-}" .venv ;;
      --with-browser)
        check_python browser .venv
        find_browser >/dev/null || lacks chromium 'a browser (Chromium or Chrome)'
        find_driver >/dev/null || lacks chromium-driver 'its driver (chromedriver)'
        ;;
      --with-torch) check_python torch .venv-torch ;;
      *) refuse "setup.sh: '$part' is none of cpu, cuda, --with-{format,lint,tables,tests,notebooks,book,browser,torch}." ;;
    esac
  done
  for wheel in ${wheels[@]+"${wheels[@]}"}; do
    venv_works "${wheel#* }" || "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null ||
      lacks python3-venv "Python's venv (to install ${wheel% *})"
  done
  # cpu and cuda ask for much the same.
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | awk 'NF && !seen[$0]++')
  mapfile -t missing < <(printf '%s\n' "${missing[@]}" | awk 'NF && !seen[$0]++')
}

in_words() {
  local text
  printf -v text '%s, ' "${missing[@]}"
  echo "${text%, }"
}

# --- Installing it -------------------------------------------------------------------------------

install_packages() {
  local as_root=() apt log=build/apt.log
  if ! command -v apt-get >/dev/null; then
    refuse "missing: $(in_words). Install them with your system's package manager (Debian calls them" \
      "${packages[*]}), or put them under a prefix named in CMAKE_PREFIX_PATH, and try again."
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      refuse "missing: $(in_words). Installing needs root; run this, then try again:
  sudo apt-get update && sudo apt-get install -y ${packages[*]}"
    fi
    as_root=(sudo -n)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  apt=("${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300)

  mkdir -p build
  say "apt-get installs ${packages[*]} (a minute or two; see $log)"
  "${as_root[@]}" dpkg --configure -a >"$log" 2>&1 || true # if the last time was interrupted
  # A broken list of some other repository need not stop us: the install decides.
  "${apt[@]}" update >>"$log" 2>&1 || say "apt-get update failed; using the existing package lists"
  if ! "${apt[@]}" install -y --no-install-recommends "${packages[@]}" >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    refuse "set-up: apt-get could not install ${packages[*]}; its whole output is in $log."
  fi
}

venv_works() { [ ! -e "$1/.unfinished" ] && "$1/bin/python" -m pip --version >/dev/null 2>&1; }

# venv_install GROUP VENV. A copy of the lists in VENV says that it is in there. What was interrupted is
# made again: half a package looks whole to pip.
venv_install() {
  local group=$1 venv=$2 pip=("$2/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all:)
  if ! venv_works "$venv"; then
    say "creating $venv"
    [ ! -e "$venv/.unfinished" ] || rm -rf "$venv"
    mkdir -p "$venv" && touch "$venv/.unfinished"
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  say "pip installs the dependency group $group into $venv"
  touch "$venv/.unfinished"
  # The first pip that knows groups; without the network where it is there.
  if ! { "${pip[@]}" 'pip>=25.1' && "${pip[@]}" --group "$group" -c common/setup/constraints.txt; }; then
    rm "$venv/.unfinished" # pip has undone its work
    refuse "set-up: pip could not install what pyproject.toml lists in the group $group."
  fi
  lists >"$venv/.$group"
  rm "$venv/.unfinished"
}

check "$@"
[ ${#packages[@]} -gt 0 ] || [ ${#wheels[@]} -gt 0 ] || exit 0
if [ ${#packages[@]} -gt 0 ]; then
  install_packages
  check "$@"
  [ ${#packages[@]} -eq 0 ] ||
    refuse "set-up: still missing after the installation, maybe because this system is too old: $(in_words)."
fi
for wheel in ${wheels[@]+"${wheels[@]}"}; do
  venv_install "${wheel% *}" "${wheel#* }"
done
