#!/usr/bin/env bash
# Installs what the build and the tests need (Debian, as root), builds, and runs every test.
# Arguments go to `cargo test`; with --only-install nothing is built or run.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A package=(
    [/usr/lib/cni/host-local]=containernetworking-plugins
    [/usr/lib/cni/bridge]=containernetworking-plugins
    [strace]=strace
    [ip]=iproute2
    [nsenter]=util-linux
    [setpriv]=util-linux
    [ping]=iputils-ping
    [jq]=jq
    [python3]=python3
    [podman]=podman
    [runc]=runc
    [busybox]=busybox-static
    [openssl]=openssl
    [etcdctl]=etcd-client
    [kubectl]=kubernetes-client
    [protoc]=protobuf-compiler
    [/usr/include/google/protobuf/descriptor.proto]=libprotobuf-dev
)
# Another server than Debian's may be tested with.
[ -n "${IPAM_DELEGATED_ETCD-}" ] || package[etcd]=etcd-server
# A kube-apiserver is built, once.
. tests/install/servers.sh
has_kube_apiserver || package[dpkg-source]=dpkg-dev
# Another Python than Debian's has the module already.
has_openwisp || python3 -c 'import ensurepip' 2>/dev/null ||
    package[/usr/share/doc/python3-venv/copyright]=python3-venv

# The tools and files that are missing, one a line.
missing() {
    local tool
    for tool in "${!package[@]}"; do
        command -v "$tool" >/dev/null || [[ $tool == /* && -e $tool ]] || echo "$tool"
    done
}

# Debian starts a server when it installs it, and at every boot. The tests start their own.
install_without_services() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -o DPkg::Lock::Timeout=120 update -qq
    apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends "$@"
    if [[ " $* " == *" etcd-server "* ]]; then
        update-rc.d etcd disable
        ! command -v systemctl >/dev/null || systemctl --quiet disable etcd.service
        # Where the machine's own policy lets it start.
        [ ! -d /run/systemd/system ] || systemctl stop etcd.service
    fi
}

tools=$(missing)
if [ -n "$tools" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    mapfile -t packages < <(for tool in $tools; do echo "${package[$tool]}"; done | sort -u)
    echo "tests/run.sh: installing ${packages[*]}"
    (install_without_services "${packages[@]}")
    tools=$(missing)
fi
if [ -n "$tools" ]; then
    for tool in $tools; do
        echo "tests/run.sh: $tool is missing: apt-get install ${package[$tool]}" >&2
    done
    exit 1
fi
# What Debian 12 does not have. Each of them waits for its downloads.
has_consul || ./tests/install/unpack-consul &
has_kube_apiserver || ./tests/install/build-kube-apiserver &
has_openwisp || ./tests/install/install-openwisp &
wait
if ! has_consul; then
    echo "tests/run.sh: consul is missing: name one by IPAM_DELEGATED_CONSUL" >&2
    exit 1
fi
if ! has_kube_apiserver; then
    echo "tests/run.sh: kube-apiserver is missing: name one by IPAM_DELEGATED_KUBE_APISERVER" >&2
    exit 1
fi
if ! has_openwisp; then
    echo "tests/run.sh: openwisp-ipam is missing: name one by IPAM_DELEGATED_OPENWISP" >&2
    exit 1
fi
[ "${1-}" != --only-install ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "tests/run.sh: not root: the tests that make network namespaces will fail" >&2
fi

# Static builds are what is shipped; where the target cannot be had, glibc builds are tested.
target=$(uname -m)-unknown-linux-musl
if command -v rustup >/dev/null && ! rustup target list --installed | grep -qx "$target"; then
    rustup target add "$target" || echo "tests/run.sh: no $target; going on without it" >&2
fi

# Tests wait for servers and timeouts far more than they compute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS-$((2 * $(nproc)))}

# The tests run the programs of the whole workspace, which `cargo test` builds only in part.
if [ $# != 0 ]; then
    cargo build --workspace --bins --examples
    cargo test --workspace "$@"
    exit
fi
cargo build --workspace --bins --examples --tests
# The programs named history count what others do in a time: nothing else runs then.
cargo test --workspace --test 'hi*'
# Many programs end with one long test, so two run at a time, with half of the tests each.
RUST_TEST_THREADS=$(((RUST_TEST_THREADS + 1) / 2))
beside=$(mktemp)
# A group of its own, so that an end of this script ends the lane beside it, too.
set -m
trap 'kill -- -$! 2>/dev/null || true; rm -f "$beside"' EXIT
{
    cargo test --workspace --test '[!a-k]*' && cargo test --workspace --doc
} >"$beside" 2>&1 &
set +m
failed=
cargo test --workspace --lib --bins --test '[a-gi-k]*' --test 'h[!i]*' || failed=yes
wait $! || failed=yes
cat "$beside"
[ -z "$failed" ]
