#!/usr/bin/env bash
# Runs a chain of two delegates by hand: ADD, the same ADD again, CHECK and DEL, with a look at the
# lease files; then the same under the name host-local. As root it also gives two network namespaces
# addresses and pings across.
#
# A release archive has the programs; in a source tree they are built first, which needs Rust and
# nothing else. Installs nothing and leaves nothing behind. What cannot be shown here, it says.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { echo "quickstart: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null; }

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

if [ -f Cargo.toml ]; then
    say "Building"
    has cargo || fail "cargo is missing: install Rust first"
    # What needs more than Rust to build is not needed here.
    cargo build --release -p ipam-delegated -p ipam-ds-static -p ipam-da-local --bins
    built=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/release
else
    built=$PWD/bin
fi
mkdir "$work/bin"
cp "$built"/ipam-delegated "$built"/ipam-ds-static "$built"/ipam-da-local "$work/bin/"

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
    "delegates": ["ipam-ds-static", "ipam-da-local"],
    "ranges": [[{"subnet": "10.218.0.0/24"}]],
    "routes": [{"dst": "0.0.0.0/0"}],
    "stateDir": "$work/state",
    "dataDir": "$work/leases"
  }
}
END
say "The network configuration"
cat "$work/network.json"

# cni PROGRAM VERB CONTAINER NETNS NETWORK [prefix…]: calls a CNI plugin as a container runtime does.
cni() {
    local program=$1 verb=$2 container=$3 netns=$4 network=$5
    shift 5
    echo "\$ CNI_COMMAND=$verb CNI_CONTAINERID=$container CNI_IFNAME=eth0 ${program##*/} <$network" >&2
    "$@" env CNI_COMMAND="$verb" CNI_CONTAINERID="$container" CNI_IFNAME=eth0 CNI_NETNS="$netns" \
        CNI_PATH="$work/bin" "$program" <"$work/$network" 2>"$work/stderr" || {
        echo "quickstart: ${program##*/} $verb failed" >&2
        cat "$work/stderr" >&2
        return 1
    }
}
chain() { cni "$work/bin/ipam-delegated" "$1" "$2" /run/netns/none "${3:-network.json}"; echo; }
attachments() {
    echo "\$ ipam-delegated attachments"
    "$work/bin/ipam-delegated" attachments --state-dir "$work/state"
}
held() { "$work/bin/ipam-delegated" attachments --state-dir "$work/state" | sed 1d | wc -l; }
leases() {
    echo "\$ grep . leases/$1/*   # a file for each address, with container and interface"
    (cd "$work" && grep . "leases/$1"/* | tr -d '\r')
}

say "ADD runs ipam-ds-static, which chooses the pool, then ipam-da-local, which gives an address"
chain ADD by-hand | tee "$work/result"
grep -q '"address":"10.218.0.2/24"' "$work/result" || fail "10.218.0.2/24 was expected"
leases quickstart
[ -f "$work/leases/quickstart/10.218.0.2" ] || fail "a lease file was expected"

say "ADD again, as a runtime does that has lost the answer, or after a reboot: the same address"
chain ADD by-hand | tee "$work/again"
cmp -s "$work/result" "$work/again" || fail "the same result was expected"

say "What the node knows of it"
attachments
[ "$(held)" = 1 ] || fail "one attachment was expected"

say "CHECK finds the address held: no output"
{ sed '$d' "$work/network.json" && printf ', "prevResult": %s}\n' "$(cat "$work/result")"; } >"$work/check.json"
chain CHECK by-hand check.json

say "DEL releases it: no output"
chain DEL by-hand
attachments
[ "$(held)" = 0 ] || fail "no attachment was expected"
if find "$work/leases" -name '10.218.*' | grep .; then fail "an address is still held"; fi

say "Under the name host-local the same program takes a configuration that host-local has"
ln -s ipam-delegated "$work/bin/host-local"
cat >"$work/unchanged.json" <<END
{
  "cniVersion": "1.0.0",
  "name": "unchanged",
  "type": "bridge",
  "ipam": {
    "type": "host-local",
    "subnet": "10.219.0.0/24",
    "stateDir": "$work/state",
    "dataDir": "$work/leases"
  }
}
END
cat "$work/unchanged.json"
cni "$work/bin/host-local" ADD by-hand /run/netns/none unchanged.json
echo
leases unchanged
attachments
[ -f "$work/leases/unchanged/10.219.0.2" ] || fail "a lease file was expected"
cni "$work/bin/host-local" DEL by-hand /run/netns/none unchanged.json
[ ! -e "$work/leases/unchanged/10.219.0.2" ] || fail "the address is still held"

not_shown() {
    say "Done. Not shown: two network namespaces that ping each other, for $*"
    exit 0
}
[ "$(id -u)" = 0 ] || not_shown "it needs root"
for tool in ip nsenter ping; do has "$tool" || not_shown "$tool is not installed"; done
ip netns add "$host" 2>"$work/stderr" || not_shown "network namespaces cannot be made here: $(cat "$work/stderr")"

bridge=''
for folder in /usr/lib/cni /opt/cni/bin; do
    if [ -x "$folder/bridge" ]; then bridge=$folder/bridge; fi
done
say "Two network namespaces as containers, and one as their host, wired by ${bridge:-ip}"
# In a namespace of its own the bridge and IPv4 forwarding are not this machine's.
for namespace in "$one" "$two"; do ip netns add "$namespace"; done
for namespace in "$host" "$one" "$two"; do ip -n "$namespace" link set lo up; done
inside() { nsenter --net="/run/netns/$1" "${@:2}"; }

# Where the bridge plugin is missing, a bridge and a pair of veths are soon made.
wire() {
    local container=$1 address gateway
    cni "$work/bin/ipam-delegated" ADD "$container" "/run/netns/$container" network.json >"$work/result"
    address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$work/result")
    gateway=$(sed 's/.*"gateway":"\([^"]*\)".*/\1/' "$work/result")
    if ! ip -n "$host" link show br-quick >/dev/null 2>&1; then
        ip -n "$host" link add br-quick type bridge
        ip -n "$host" addr add "$gateway/24" dev br-quick
        ip -n "$host" link set br-quick up
    fi
    ip -n "$host" link add "v-${container#ipamd-}" type veth peer name eth0 netns "$container"
    ip -n "$host" link set "v-${container#ipamd-}" master br-quick up
    ip -n "$container" addr add "$address" dev eth0
    ip -n "$container" link set eth0 up
    ip -n "$container" route add default via "$gateway"
}
plug() {
    if [ -n "$bridge" ]; then
        cni "$bridge" ADD "$1" "/run/netns/$1" network.json inside "$host" >/dev/null
    else
        wire "$1"
    fi
}
unplug() { cni "${bridge:-$work/bin/ipam-delegated}" DEL "$1" "/run/netns/$1" network.json inside "$host"; }

plug "$one"
plug "$two"
attachments
[ "$(held)" = 2 ] || fail "two attachments were expected"

address=$(inside "$two" ip -4 -o addr show eth0 | sed 's/.* inet \([0-9.]*\).*/\1/')
say "Ping from one to two, $address"
inside "$one" ping -c 3 -i 0.2 -w 10 "$address"

say "And released"
unplug "$one"
unplug "$two"
attachments
[ "$(held)" = 0 ] || fail "no attachment was expected"
say "Done"
