#!/bin/sh
# Chooses the pool by the rack of this host: a selector in POSIX shell. Needs jq.
#
# Install it as `ipam-ds-rack`, without the ending: the chain knows a selector by its name.
set -u

answer_error() { # CODE MESSAGE
    jq -cn --argjson code "$1" --arg msg "$2" '{cniVersion: "1.1.0", code: $code, msg: $msg}'
    exit 1
}

if [ -z "${CNI_COMMAND+set}" ]; then
    echo "ipam-ds-rack: a selector of ipam-delegated, which calls it" >&2
    exit 0
fi
if [ "$CNI_COMMAND" = VERSION ]; then
    echo '{"cniVersion": "1.1.0", "supportedVersions":
        ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]}'
    exit 0
fi
if ! command -v jq >/dev/null; then
    echo '{"cniVersion": "1.1.0", "code": 5, "msg": "jq is not installed: this delegate needs it"}'
    exit 1
fi
case $CNI_COMMAND in
ADD | DEL | CHECK | GC | STATUS) ;;
*) answer_error 4 "unknown CNI_COMMAND: $CNI_COMMAND" ;;
esac

config=$(cat)

# Prints what a jq filter finds in the network configuration; fails if it finds nothing.
find_in_config() { # FILTER [JQ OPTION...]
    filter=$1
    shift
    printf '%s' "$config" | jq -cre "$@" "$filter" 2>/dev/null
}

find_in_config 'length == 1 and (.[0] | type == "object")' -s >/dev/null ||
    answer_error 6 'stdin: expected one JSON object'
rack_file=$(find_in_config '.ipam.rackFile | strings') ||
    answer_error 7 'ipam.rackFile: expected the path of a file with the name of the rack'
find_in_config '.ipam.racks | type == "object"' >/dev/null ||
    answer_error 7 'ipam.racks: expected an object: a pool for each rack'

text=$(cat -- "$rack_file") || answer_error 5 "ipam.rackFile: cannot read $rack_file"
rack=$(jq -nr --arg text "$text" '$text | gsub("^\\s+|\\s+$"; "")')
find_in_config '.ipam.racks[$rack] != null' --arg rack "$rack" >/dev/null ||
    answer_error 7 "ipam.racks: no pool for rack \"$rack\""
pool=$(find_in_config '.ipam.racks[$rack] | objects | select([.name, .ranges] - [null, "", []] != [])' \
    --arg rack "$rack") ||
    answer_error 7 "ipam.racks.$rack: expected an object with name or ranges"

# The answer is prevResult, with our pool behind those of the selectors before (C15, C16).
find_in_config '{cniVersion: (.cniVersion // "0.1.0"), ips: []} + .prevResult | .pools |= ((. // []) |
    if any(.name and .name == $pool.name) then map(if .name == $pool.name then . + $pool else . end)
    else . + [$pool] end)' --argjson pool "$pool"
