#!/usr/bin/env bash
# Builds ipam-delegated, runs a chain of two delegates by hand, and, as root, gives two network
# namespaces addresses through the bridge plugin and pings across. Leaves nothing behind.
#
# Needs Rust. host-local and bridge are the reference CNI plugins; as root on Debian they are
# installed when missing (containernetworking-plugins).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { echo "quickstart: $*" >&2; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# The folder of the reference plugins.
find_plugins() {
    local folder
    for folder in /usr/lib/cni /opt/cni/bin; do
        if [ -x "$folder/host-local" ] && [ -x "$folder/bridge" ]; then
            echo "$folder"
            return
        fi
    done
    return 1
}

# Installs a Debian package when a program is missing.
need() {
    local package=$1 found=$2
    if ! eval "$found" >/dev/null; then
        is_root && command -v apt-get >/dev/null || fail "$package is missing: apt-get install $package"
        say "Installing $package"
        apt-get -o DPkg::Lock::Timeout=120 update -qq
        DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -qq -y --no-install-recommends "$package"
        eval "$found" >/dev/null || fail "$package is installed, but what is needed of it is not found"
    fi
}

command -v cargo >/dev/null || fail "cargo is missing: install Rust first"
need containernetworking-plugins find_plugins
plugins=$(find_plugins)

work=$(mktemp -d)
host=ipamd-host-$$ one=ipamd-one-$$ two=ipamd-two-$$
cleanup() {
    local namespace
    for namespace in "$one" "$two" "$host"; do
        [ ! -e "/run/netns/$namespace" ] || ip netns del "$namespace" || true
    done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "Building"
cargo build --release --workspace --bins
built=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
mkdir "$work/bin"
cp "$built"/ipam-delegated "$built"/ipam-ds-static "$work/bin/"

# A network as a runtime has it in /etc/cni/net.d. stateDir and dataDir are set only so that this
# script touches nothing of the machine.
cat >"$work/network.json" <<END
{
  "cniVersion": "1.0.0",
  "name": "quickstart",
  "type": "bridge",
  "bridge": "br-quick",
  "isGateway": true,
  "ipam": {
    "type": "ipam-delegated",
    "delegates": ["ipam-ds-static", "host-local"],
    "ranges": [[{"subnet": "10.123.0.0/24"}]],
    "routes": [{"dst": "0.0.0.0/0"}],
    "stateDir": "$work/state",
    "dataDir": "$work/leases"
  }
}
END
say "The network configuration"
cat "$work/network.json"

# cni PROGRAM VERB CONTAINER NETNS [prefix…]: calls a CNI plugin as a container runtime does.
cni() {
    local program=$1 verb=$2 container=$3 netns=$4
    shift 4
    echo "\$ CNI_COMMAND=$verb CNI_CONTAINERID=$container CNI_IFNAME=eth0 ${program##*/} <network.json" >&2
    "$@" env CNI_COMMAND="$verb" CNI_CONTAINERID="$container" CNI_IFNAME=eth0 CNI_NETNS="$netns" \
        CNI_PATH="$work/bin:$plugins" "$program" <"$work/network.json" 2>"$work/stderr" || {
        echo "quickstart: ${program##*/} $verb failed" >&2
        cat "$work/stderr" >&2
        return 1
    }
}
chain() { cni "$work/bin/ipam-delegated" "$1" "$2" /run/netns/none; echo; }
attachments() {
    echo "\$ ipam-delegated attachments"
    "$work/bin/ipam-delegated" attachments --state-dir "$work/state"
}
held() { "$work/bin/ipam-delegated" attachments --state-dir "$work/state" | sed 1d | wc -l; }

say "ADD runs ipam-ds-static, which chooses the pool, then host-local, which gives an address"
chain ADD by-hand | tee "$work/result"
grep -q '"address":"10.123.0.2/24"' "$work/result" || fail "10.123.0.2/24 was expected"

say "What the node knows of it"
attachments
[ "$(held)" = 1 ] || fail "one attachment was expected"

say "CHECK finds the address held: no output"
sed -i '$d' "$work/network.json"
printf ', "prevResult": %s}\n' "$(cat "$work/result")" >>"$work/network.json"
chain CHECK by-hand

say "DEL releases it: no output"
chain DEL by-hand
attachments
[ "$(held)" = 0 ] || fail "no attachment was expected"
if find "$work/leases" -name '10.123.*' | grep .; then fail "host-local still holds an address"; fi

if ! is_root; then
    say "Done. Left out, for it needs root: two network namespaces on a bridge"
    exit 0
fi
need iproute2 "command -v ip"
need iputils-ping "command -v ping"

say "Two network namespaces as containers, and one as their host"
sed -i '$d' "$work/network.json"
echo '}' >>"$work/network.json"
# The bridge plugin switches IPv4 forwarding on: in a namespace of its own this machine's stays.
for namespace in "$host" "$one" "$two"; do
    ip netns add "$namespace"
    ip -n "$namespace" link set lo up
done
inside() { nsenter --net="/run/netns/$1" "${@:2}"; }
bridge() { cni "$plugins/bridge" "$1" "$2" "/run/netns/$3" inside "$host"; }
bridge ADD container-one "$one" >/dev/null
bridge ADD container-two "$two" >/dev/null
attachments
[ "$(held)" = 2 ] || fail "two attachments were expected"

address=$(inside "$two" ip -4 -o addr show eth0 | sed 's/.* inet \([0-9.]*\).*/\1/')
say "Ping from one to two, $address"
inside "$one" ping -c 3 -i 0.2 -w 10 "$address"

say "And released"
bridge DEL container-one "$one"
bridge DEL container-two "$two"
attachments
[ "$(held)" = 0 ] || fail "no attachment was expected"
say "Done"
