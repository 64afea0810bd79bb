# Sourced after scripts/environment.sh by scripts that test against a package in an environment of its own.

# install_separately VENV SPEC DURATION [PACKAGE...]: create VENV with torch, the packages and sparring, and
# again when a requirement or pyproject.toml changes. PACKAGES are removed afterwards.
install_separately() {
    local venv="$1" spec="$2" duration="$3" python
    local stamp="$venv/installed"
    shift 3
    if { echo "$TORCH_SPEC $spec"; cat pyproject.toml; } | cmp -s - "$stamp"; then
        return
    fi
    python="$(find_python)"
    echo "==> creating $venv with $("$python" --version)" >&2
    "$python" -m venv "$venv"
    # The CPU build comes first: the package then finds the torch that it requires, and pip downloads no other.
    echo "==> installing $TORCH_SPEC (once)" >&2
    # shellcheck disable=SC2086 # split into words on purpose
    pip_in "$venv" install $TORCH_SPEC
    echo "==> installing $spec and sparring (once, $duration)" >&2
    # shellcheck disable=SC2086 # a specification may name several packages
    pip_in "$venv" install $spec -e ".[dev]"
    if [ $# -gt 0 ]; then
        pip_in "$venv" uninstall --yes "$@"
    fi
    { echo "$TORCH_SPEC $spec"; cat pyproject.toml; } >"$stamp"
}

# pip_in VENV ARGS: run pip; keep its output in a file and show the end of it on failure.
pip_in() {
    local venv="$1"
    shift
    if ! "$venv/bin/python" -m pip "$@" >"$venv/install.log" 2>&1; then
        tail -n 15 "$venv/install.log" >&2
        echo "error: pip failed. The whole output is in $PWD/$venv/install.log" >&2
        exit 1
    fi
}

# client NAME REQUIREMENT...: create .venv-clients/NAME with a client and nothing of sparring, and again when
# the requirements change. A requirement of torch is installed first.
client() {
    local venv=".venv-clients/$1" python requirement
    shift
    if [ "$*" = "$(cat "$venv/installed" 2>/dev/null)" ]; then
        return
    fi
    python="$(find_python)"
    "$python" -m venv "$venv"
    for requirement in "$@"; do
        echo "==> installing $requirement (once)" >&2
        # shellcheck disable=SC2086 # the requirement of torch may have further arguments of pip
        pip_in "$venv" install $requirement
    done
    echo "$*" >"$venv/installed"
}
