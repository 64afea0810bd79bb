# Sourced by scripts/train and scripts/test, from the root of the clone: creates .venv and installs into it.

# On Linux a plain torch from PyPI brings the CUDA build (gigabytes). pip installs a CPU wheel instead if its
# own configuration (find-links, extra index) offers one. TORCH_SPEC is the requirement, and may contain
# further arguments of pip.
TORCH_SPEC="${TORCH_SPEC:-torch==2.13.0}"

# Print the first Python of version 3.11 or newer.
find_python() {
    local candidate
    for candidate in python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: no Python 3.11 or newer found as python3.11, python3 or python. Install one and try again." >&2
    return 1
}

# Run a pip command: a terminal shows its latest line in place, and .venv keeps the whole output.
run_pip() {
    local log=".venv/install.log" line
    if ! .venv/bin/python -m pip install "$@" 2>&1 | tee "$log" | while IFS= read -r line; do
        if [ -t 2 ]; then printf '\r\033[K    %.76s' "$line" >&2; fi
    done; then
        if [ -t 2 ]; then printf '\r\033[K' >&2; fi
        tail -n 15 "$log" >&2
        echo "error: pip install failed. The whole output is in $PWD/$log" >&2
        return 1
    fi
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
}

# prepare KIND REQUIREMENT: install once for each kind, and again when pyproject.toml or TORCH_SPEC changes.
prepare() {
    local kind="$1" requirement="$2" stamp=".venv/installed-$1" python started=$SECONDS
    if { echo "$TORCH_SPEC"; cat pyproject.toml; } | cmp -s - "$stamp"; then
        return
    fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        python="$(find_python)"
        echo "==> creating .venv with $("$python" --version)" >&2
        "$python" -m venv .venv
    fi
    echo "==> installing $TORCH_SPEC (once)" >&2
    # shellcheck disable=SC2086 # split into words on purpose
    run_pip $TORCH_SPEC
    echo "==> installing sparring and its dependencies (once, a minute or two)" >&2
    run_pip -e "$requirement"
    { echo "$TORCH_SPEC"; cat pyproject.toml; } >"$stamp"
    echo "==> installed in $((SECONDS - started)) s" >&2
}
