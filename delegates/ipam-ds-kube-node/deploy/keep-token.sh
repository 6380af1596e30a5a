#!/bin/sh
# Keeps a copy of a secret on the host, for programs that run there and not in pods:
#
#   keep-token.sh SECRET FILE
#
# Only its owner may read FILE. A rename replaces it when the secret has changed.
#
#   EVERY            seconds between two checks
set -u
export LC_ALL=C
umask 077

main() {
    trap 'exit 0' TERM INT
    while :; do
        keep "$@" || echo "keep-token.sh: $2 stays as it is" >&2
        sleep "${EVERY:-60}" &
        wait $!
    done
}

keep() {
    [ -s "$1" ] || return
    cmp -s "$1" "$2" && return
    mkdir -p "${2%/*}" && cat "$1" >"$2.new" && mv -f "$2.new" "$2" || return
    echo "keep-token.sh: wrote $2"
}

main "$@"
