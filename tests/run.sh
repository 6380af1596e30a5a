#!/usr/bin/env bash
# Installs what the tests need (Debian, as root), builds, and runs every test.
# Arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A package=(
    [/usr/lib/cni/host-local]=containernetworking-plugins
    [/usr/lib/cni/bridge]=containernetworking-plugins
    [strace]=strace
    [ip]=iproute2
    [nsenter]=util-linux
    [ping]=iputils-ping
    [jq]=jq
    [python3]=python3
    [podman]=podman
    [runc]=runc
    [busybox]=busybox-static
)

# The tools that are missing, one a line.
missing() {
    local tool
    for tool in "${!package[@]}"; do
        command -v "$tool" >/dev/null || echo "$tool"
    done
}

tools=$(missing)
if [ -n "$tools" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    mapfile -t packages < <(for tool in $tools; do echo "${package[$tool]}"; done | sort -u)
    echo "tests/run.sh: installing ${packages[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=120 update -qq
    apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends "${packages[@]}"
    tools=$(missing)
fi
if [ -n "$tools" ]; then
    for tool in $tools; do
        echo "tests/run.sh: $tool is missing: apt-get install ${package[$tool]}" >&2
    done
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "tests/run.sh: not root: the tests that make network namespaces will fail" >&2
fi

# Static builds are what is shipped; where the target cannot be had, glibc builds are tested.
target=$(uname -m)-unknown-linux-musl
if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx "$target"; then
    rustup target add "$target" || echo "tests/run.sh: no $target; going on without it" >&2
fi

# The tests run the programs of the whole workspace, which `cargo test` builds only in part.
cargo build --workspace --bins --examples
cargo test --workspace "$@"
