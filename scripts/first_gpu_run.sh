#!/usr/bin/env bash
# The first thing to run on a real NVIDIA GPU, from a clone: what the simulated one cannot show, in ten minutes. Each
# part has its own limit, and the others go on when one fails. What was found is on the lines that begin with "FACT"; they
# are in $OUT/facts.txt, to be committed under benchmarks/results. PYTHON=python3.12 chooses the Python; its torch is used.
set -uo pipefail
cd "$(dirname "$0")/.."

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false PIP_DISABLE_PIP_VERSION_CHECK=1
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
here=$PWD
python=${PYTHON:-python3}
seconds=${SECONDS_IN_ALL:-600}

left() { # at most so many seconds, and no more than are left
    local rest=$((seconds - SECONDS))
    echo $((rest < $1 ? (rest > 5 ? rest : 5) : $1))
}
fact() { echo "FACT $*" | tee -a "$out/facts.txt"; }
facts() { tee -a "$out/all.txt" | grep --line-buffered "^FACT" | tee -a "$out/facts.txt"; } # those among what a part says
part() { printf '\n== %d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

part "The machine"
nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap,pcie.link.gen.current,pcie.link.width.current \
    --format=csv,noheader | sed 's/^/FACT gpu /' | facts
fact "host: $(awk '/MemTotal/{printf "%.0f GB", $2 / 1e6}' /proc/meminfo), $(nproc) cores, page-locked limit $(ulimit -l) KiB"
fact "colabkeep $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
timeout "$(left 90)" "$python" -m pip install -q cloudpickle google-auth ipywidgets 'PyDrive2>=1.20' requests safetensors tenacity \
    pytest pytest-xdist pytest-timeout hypothesis 2>&1 | tail -1

timeout "$(left 60)" "$python" -m colabkeep doctor --probe 2>&1 | tee "$out/doctor.txt" | sed 's/^/FACT doctor: /' | facts

part "Copies: speed, order, memory, graphs"
timeout "$(left 120)" "$python" scripts/first_gpu/copies.py 2>"$out/copies.txt" | facts
fact "copies: status ${PIPESTATUS[0]}, $(tail -1 "$out/copies.txt")"

part "The same bits, with real kernels"
exact() {
    local folder whole again status resumed
    folder=$(mktemp -d)
    life() { (cd "$folder" && timeout "$(left 60)" "$python" "$here/scripts/first_gpu/exact.py" "$mode" "$@" 2>>"$out/exact.txt"); }
    whole=$(life whole "$folder/a" | grep -o 'BITS.*')
    again=$(life whole "$folder/b" | grep -o 'BITS.*')
    life killed "$folder/c" >/dev/null
    status=$?
    resumed=$(life whole "$folder/c" | grep -oE 'BITS.*|INEXACT.*' | tr '\n' ' ')
    fact "exact, $mode: whole [$whole] again [$again] killed (status $status) and resumed [$resumed]"
    rm -rf "$folder"
}
for mode in deterministic benchmark warn-only default; do exact & done
wait

part "The benchmark of saves"
memory=/dev/shm # 17 GB are written and removed, which a disk would be waited for
[ -d "$memory" ] || memory=${TMPDIR:-/tmp}
if [ "$(left 90)" -gt 40 ]; then
    timeout "$(left 120)" "$python" benchmarks gpu --results "$out" --folder "$memory" >"$out/benchmark.txt" 2>&1
    fact "benchmark: status $?"
    grep -E "times the copy|ms|tensors" "$out/benchmark.txt" | sed 's/^/FACT benchmark /' | facts
fi

part "The tests that need a card"
pytest() { # NAME SECONDS ARGUMENTS: the tests' own words go to NAME.txt, how they ended is a fact. Other packages than CI's warn otherwise
    timeout "$(left "$2")" "$python" -m pytest -v -p no:cacheprovider -W default "${@:3}" >"$out/$1.txt" 2>&1
    fact "tests, $1: status $?, $(grep -E " in [0-9.]+s" "$out/$1.txt" | tail -1)"
    grep -E "(FAILED|ERROR)" "$out/$1.txt" | grep -v "^\[.*PASSED" | cut -c 1-300 | sort -u | sed 's/^/FACT /' | facts
}
pytest card 240 -m "cuda or card" -n12 --dist=load --durations=8 tests/frameworks/torch/state tests/frameworks/torch/test_losses.py \
    tests/frameworks/torch/training/test_arithmetic.py tests/simcuda/test_order.py tests/simcuda/test_saving.py \
    tests/simcuda/test_resuming.py tests/session/torch/test_two_gpus.py tests/session/torch/test_one_card.py tests/hardware

part "The trainers of others, on the card"
pytest trainers 120 -n8 --dist=load tests/integrations
KERAS_BACKEND=jax pytest keras-on-jax 60 -n0 tests/integrations/test_keras.py -k "killed or failed"

fact "took $SECONDS s"
echo "All of it: $out"
