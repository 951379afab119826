#!/bin/sh
# Configures, builds and runs all demos against a bundle named `demo`; one line per check. Needs no network.
#
#   cpp_demo/run_all.sh BUNDLE [BUILD_DIRECTORY]
#
# Environment variables, if the defaults do not find things:
#   CUTE_AOT_DIR   directory of cute_aotConfig.cmake (default: what `python3 -m aot config --cmakedir` prints, or else the
#                  checkout's runtime/cmake)
#   TVM_FFI_LIBRARY  path of libtvm_ffi.so (default: what `tvm-ffi-config --libfiles` prints)
#   DEMO_ARCHS     architectures that the static demos link, separated by ; (default: all of the bundle)
#   PYTHON, CMAKE, GENERATOR   the tools to use
#
# Exit code: 0 the demos that can run here passed; 77 none can, since there is no usable GPU; 1 something failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "usage: $0 BUNDLE [BUILD_DIRECTORY]" >&2; exit 2; }
[ -d "$1" ] || { echo "$0: \`$1\` is not a directory" >&2; exit 2; }
bundle=$(cd "$1" && pwd)
build=${2:-$(mktemp -d)}
python=${PYTHON:-python3}
cmake=${CMAKE:-cmake}
package=${CUTE_AOT_DIR:-$("$python" -m aot config --cmakedir 2>/dev/null || echo "$here/../runtime/cmake")}
library=${TVM_FFI_LIBRARY:-$("$python" -m tvm_ffi.config --libfiles 2>/dev/null || tvm-ffi-config --libfiles 2>/dev/null)}

"$cmake" -S "$here" -B "$build" ${GENERATOR:+-G "$GENERATOR"} -Dcute_aot_DIR="$package" -DBUNDLE="$bundle" \
  -DCUTE_AOT_TVM_FFI_LIBRARY="$library" -DDEMO_ARCHS="${DEMO_ARCHS:-}" \
  -DPython3_EXECUTABLE="$(command -v "$python")" >"$build.configure.log" 2>&1 ||
  { cat "$build.configure.log" >&2; echo "FAIL: configure" >&2; exit 1; }
"$cmake" --build "$build" >"$build.build.log" 2>&1 || { cat "$build.build.log" >&2; echo "FAIL: build" >&2; exit 1; }
rm -f "$build.configure.log" "$build.build.log"

failed=0
passed=0
refused=
run() {
  name=$1
  shift
  "$@"
  code=$?
  echo "exit : $name $code"
  case $code in
    0) passed=$((passed + 1)) ;;
    77) refused="$refused $name" ;;
    *) failed=$((failed + 1)) ;;
  esac
}
run static_link "$build/static_link"
run dynamic_link "$build/dynamic_link"
run open_at_run_time "$build/open_at_run_time" "$bundle" "$library"
run plain_c "$build/plain_c"
if [ -f "$build/demo_extension.so" ]; then
  run extension env PYTHONPATH="$build" "$python" "$here/extension_check.py"
else
  echo "left out: extension (no Python headers or no pybind11)"
fi
if [ -x "$build/torch_package" ]; then
  operators=$bundle/lib/$(uname -m)-linux-gnu/libdemo_torch.so
  run make_package env PYTHONWARNINGS=ignore "$python" "$here/torch_package.py" "$bundle" "$build/demo.pt2"
  [ ! -f "$build/demo.pt2" ] || run torch_package "$build/torch_package" "$library" "$operators" "$build/demo.pt2" cuda
else
  echo "left out: torch_package (no torch)"
fi
[ "$failed" -eq 0 ] || exit 1
[ -n "$refused" ] || exit 0
[ "$passed" -gt 0 ] || { echo "skipped: there is no usable GPU, as the lines above say"; exit 77; }
echo "left out:$refused (the lines above say why); $passed demos passed"
