#!/usr/bin/env bash
# Runs a chain of two delegates by hand, as a container runtime does, and shows what it can do that
# one plugin cannot: another selector on the same store, a DEL with a broken configuration, an undo,
# and the same program under the name host-local. As root it also pings between two namespaces.
#
# It installs nothing. In a source tree it first builds three programs, which needs Rust alone.
set -euo pipefail
unset CDPATH
umask 022
cd "$(dirname "$0")/.."
root=$PWD

say() { printf '\n== %s\n' "$*"; }
fail() { echo "quickstart: $*" >&2; exit 1; }
has() { command -v "$1" >/dev/null; }

host=ipamd-host-$$ one=ipamd-one-$$ two=ipamd-two-$$
cleanup() {
    local namespace
    for namespace in "$one" "$two" "$host"; do
        [ ! -e "/run/netns/$namespace" ] || ip netns del "$namespace" || true
    done
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -f Cargo.toml ]; then
    echo "This builds three programs, which takes about a minute the first time, and runs two seconds."
    echo "It leaves target/ (90 MB) and nothing else."
    say "Building"
    has cargo || fail "cargo is missing: install Rust first"
    # These three need Rust alone.
    cargo build --release -p ipam-delegated -p ipam-ds-static -p ipam-da-local --bins
    target=$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
    built=$target/release work=$target/quickstart
else
    built=$root/bin work=$root/quickstart
    echo "This runs two seconds. It leaves the folder $work and nothing else."
fi
# A second run would remove the folder of the first one.
if has flock; then
    exec 9<"${work%/*}"
    flock -n 9 || fail "it runs already: wait for its end"
fi
rm -rf "$work" || fail "cannot remove $work, which an earlier run as another user made"
mkdir -p "$work/bin"
cp "$built"/ipam-delegated "$built"/ipam-ds-static "$built"/ipam-da-local "$work/bin/"

# Prints a command and runs it. Its warnings are shown if it fails.
run() {
    printf '$ %s\n' "$1"
    { eval "$1"; } 2>"$work/stderr" || {
        cat "$work/stderr" >&2
        fail "this command failed: $1"
    }
}
# The lease files of a network have the names of their addresses.
is_free() { [ ! -e "leases/$1/$2" ]; }
is_held() { [ -e "leases/$1/$2" ]; }

echo
echo "Afterwards you can paste each command, up to the network namespaces, which are removed. A pasted"
echo "ADD also prints a warning: this trial has a state folder of its own (ipam.stateDir)."
say "A folder with the programs, and the variables that a runtime sets"
run "cd $(printf %q "$work")"
run 'export CNI_PATH=$PWD/bin CNI_IFNAME=eth0 CNI_NETNS=/run/netns/none'

# A network as a runtime has it in /etc/cni/net.d. stateDir and dataDir are for this trial alone: it
# touches no state of this machine. An ADD warns of stateDir.
network() { # NAME DELEGATES KEYS
    cat <<END
{
  "cniVersion": "1.0.0",
  "name": "$1",
  "type": "bridge",
  "bridge": "br-quick",
  "isGateway": true,
  "ipam": {
    "type": "ipam-delegated",
    "delegates": $2,${3:+
    $3,}
    "stateDir": "$work/state",
    "dataDir": "$work/leases"
  }
}
END
}
network quickstart '["ipam-ds-static", "ipam-da-local"]' \
    '"ranges": [[{"subnet": "10.218.0.0/24"}]]' >network.json
say "The network: ipam-ds-static chooses the pool, ipam-da-local gives an address of it"
run 'cat network.json'

say "ADD gives the container c1 an address; its lease is a file, as host-local has it"
run 'CNI_COMMAND=ADD CNI_CONTAINERID=c1 bin/ipam-delegated <network.json | tee result; echo'
grep -q '"address":"10.218.0.2/24"' result || fail "10.218.0.2/24 was expected"
run 'ls leases/quickstart'
is_held quickstart 10.218.0.2 || fail "a lease file was expected"

say "ADD again, as after a reboot or a lost answer: the same address"
run 'CNI_COMMAND=ADD CNI_CONTAINERID=c1 bin/ipam-delegated <network.json | tee again; echo'
cmp -s result again || fail "the same result was expected"

say "CHECK finds the address held: no output"
run "{ sed '\$d' network.json; echo ', \"prevResult\":' \"\$(cat result)\" '}'; } >check.json"
run 'CNI_COMMAND=CHECK CNI_CONTAINERID=c1 bin/ipam-delegated <check.json'

say "Another selector, a script of your own, in front of the same store"
cat >bin/ipam-ds-mine <<'END'
#!/bin/sh
# Chooses the pool by a file of this host.
case $(cat "$CNI_PATH/../rack") in
r1) from=10.218.0.100 ;;
*) from=10.218.0.200 ;;
esac
echo '{"cniVersion": "1.0.0", "ips": [], "pools": [{"ranges": [
    {"subnet": "10.218.0.0/24", "rangeStart": "'$from'"}]}]}'
END
chmod +x bin/ipam-ds-mine
echo r1 >rack
network quickstart '["ipam-ds-mine", "ipam-da-local"]' >mine.json
run 'cat bin/ipam-ds-mine'
run 'diff network.json mine.json || :'
run 'CNI_COMMAND=ADD CNI_CONTAINERID=c2 bin/ipam-delegated <mine.json | tee result; echo'
grep -q '"address":"10.218.0.100/24"' result || fail "10.218.0.100/24 was expected"

say "c1 keeps its address, and both are in one pool: pools shows it with a map"
run 'bin/ipam-delegated attachments --state-dir state'
run 'bin/ipam-delegated pools ./network.json --cni-path bin | tee pools'
grep -q ' 253  *2  *251 ' pools || fail "2 of 253 addresses were expected"

say "DEL with a broken configuration releases the address: a record of the ADD says how"
cat >broken.json <<END
{
  "cniVersion": "1.0.0",
  "name": "quickstart",
  "type": "bridge",
  "ipam": {
    "type": "ipam-delegated",
    "delegates": ["ipam-ds-removed", 7],
    "ranges": "oops",
    "stateDir": "$work/state"
  }
}
END
run 'cat broken.json'
run 'CNI_COMMAND=DEL CNI_CONTAINERID=c1 bin/ipam-delegated <broken.json'
run 'CNI_COMMAND=DEL CNI_CONTAINERID=c2 bin/ipam-delegated <broken.json'
run 'bin/ipam-delegated attachments --state-dir state'
run 'ls leases/quickstart'
if ! is_free quickstart 10.218.0.2 || ! is_free quickstart 10.218.0.100; then
    fail "an address is still held"
fi

say "Two pools and two allocators; the second one fails, so the chain undoes what the first one did"
cat >bin/ipam-da-broken <<'END'
#!/bin/sh
# An allocator whose server is down: an ADD fails, anything else succeeds.
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion": "1.0.0", "code": 105, "msg": "cannot connect to ipam.example.com"}'
exit 1
END
chmod +x bin/ipam-da-broken
network undo '["ipam-ds-static",
      {"type": "ipam-da-local", "serves": ["near"]},
      {"type": "ipam-da-broken", "serves": ["far"]}
    ]' '"pools": [
      {"name": "near", "ranges": [{"subnet": "10.219.0.0/24"}]},
      {"name": "far", "ranges": [{"subnet": "10.220.0.0/24"}]}
    ]' >undo.json
run 'cat undo.json'
run 'CNI_COMMAND=ADD CNI_CONTAINERID=c3 bin/ipam-delegated <undo.json || echo " (exit status $?)"'
run 'ls leases/undo'
run 'bin/ipam-delegated attachments --state-dir state'
run 'CNI_COMMAND=DEL CNI_CONTAINERID=c3 bin/ipam-delegated <undo.json'
is_free undo 10.219.0.2 || fail "the first address is still held"
[ -e leases/undo/last_reserved_ip.0 ] || fail "an address was expected to be given first"

say "Under the name host-local it takes host-local's configuration and goes on with its lease files"
run 'ln -sf ipam-delegated bin/host-local'
cat >unchanged.json <<END
{
  "cniVersion": "1.0.0",
  "name": "unchanged",
  "type": "bridge",
  "ipam": {
    "type": "host-local",
    "subnet": "10.221.0.0/24",
    "stateDir": "$work/state",
    "dataDir": "$work/leases"
  }
}
END
run 'cat unchanged.json'
run 'CNI_COMMAND=ADD CNI_CONTAINERID=c4 bin/host-local <unchanged.json; echo'
run 'ls leases/unchanged'
is_held unchanged 10.221.0.2 || fail "a lease file was expected"
run 'CNI_COMMAND=DEL CNI_CONTAINERID=c4 bin/host-local <unchanged.json'
is_free unchanged 10.221.0.2 || fail "the address is still held"

# The last words, with why the ping was not shown.
finish() {
    if [ -n "${1-}" ]; then say "Not shown: two network namespaces that ping each other. $1"; fi
    say "Done. Next:"
    echo "  $(printf %q "$root/install.sh")   as root: installs these programs; --dry-run shows what it would do"
    echo "  docs/guide.md   a first network, Kubernetes, podman, Nomad"
    exit 0
}
[ "$(id -u)" = 0 ] || finish "It needs root."
for tool in ip nsenter ping; do has "$tool" || finish "$tool is not installed."; done
ip netns add "$host" 2>stderr || finish "Network namespaces cannot be made here: $(cat stderr)"

bridge=''
for folder in /usr/lib/cni /opt/cni/bin; do
    if [ -x "$folder/bridge" ]; then bridge=$folder/bridge; fi
done
say "Two network namespaces as containers, and one as their host, connected by ${bridge:-ip}"
# In a namespace of its own the bridge and IPv4 forwarding are not this machine's.
for namespace in "$one" "$two"; do ip netns add "$namespace"; done
for namespace in "$host" "$one" "$two"; do ip -n "$namespace" link set lo up; done

# Where the bridge plugin is missing, ip makes a bridge and a pair of veths.
wire() {
    local container=$1 address gateway
    address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' result)
    gateway=$(sed 's/.*"gateway":"\([^"]*\)".*/\1/' result)
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
call() { # VERB CONTAINER
    run "CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 \\
    nsenter --net=/run/netns/$host ${bridge:-bin/ipam-delegated} <network.json >result"
}
for namespace in "$one" "$two"; do
    call ADD "$namespace"
    [ -n "$bridge" ] || wire "$namespace"
done
run 'bin/ipam-delegated attachments --state-dir state'
address=$(ip -n "$two" -4 -o addr show eth0 | sed 's/.* inet \([0-9.]*\).*/\1/')

say "Ping from one to the other"
run "nsenter --net=/run/netns/$one ping -c 3 -i 0.2 -w 10 $address"

say "And released"
for namespace in "$one" "$two"; do call DEL "$namespace"; done
run 'bin/ipam-delegated attachments --state-dir state | tee attachments'
[ "$(wc -l <attachments)" = 1 ] || fail "no attachment was expected"
finish
