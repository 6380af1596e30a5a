# Where the servers are that Debian 12 does not have, and how to get at Debian's other releases.
# For bash; the scripts beside it read it.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ipam-delegated
consul=$cache/consul-1.8.7
kube_apiserver=$cache/kube-apiserver-1.20.2
openwisp=$cache/openwisp-ipam-1.3.1

has_consul() {
    [ -n "${IPAM_DELEGATED_CONSUL-}" ] || command -v consul >/dev/null || [ -e "$consul/unpacked" ]
}

has_kube_apiserver() {
    [ -n "${IPAM_DELEGATED_KUBE_APISERVER-}" ] ||
        { [ -n "${KUBEBUILDER_ASSETS-}" ] && [ -x "$KUBEBUILDER_ASSETS/kube-apiserver" ]; } ||
        command -v kube-apiserver >/dev/null || [ -x "$kube_apiserver/kube-apiserver" ]
}

# The installation of these very packages is complete.
has_openwisp() {
    [ -n "${IPAM_DELEGATED_OPENWISP-}" ] ||
        cmp -s "$(dirname "${BASH_SOURCE[0]}")/openwisp/requirements.txt" \
            "$openwisp/requirements.txt"
}

# Goes into a folder of its own beside this one, which is removed at the end of the script. One
# script at a time is in there: what is left of others is of those that were killed.
enter_folder_beside() {
    mkdir -p "$cache"
    exec 9>"$1.lock"
    flock 9
    rm -rf "$1".??????
    cd "$(mktemp -d "$1.XXXXXX")"
    trap 'rm -rf "$PWD"' EXIT
    mkdir lists cache
}

# apt with sources, lists and archives of its own, in this folder.
apt_here() {
    apt-get -qq -o Dir::Etc::SourceList="$PWD/sources" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

# Downloads by a command that uses `apt_here`, from a release of Debian on the machine's own
# mirrors, of packages in these forms (deb, deb-src); Debian's signature tells which of the mirrors
# are Debian's.
download_from() {
    local release=$1 forms=$2 mirror
    shift 2
    for mirror in $(sed -s 's/#.*//' /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} \
        2>/dev/null | grep -oE '[a-z][a-z+]*:/[^] ]+' | sort -u); do
        printf "%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $release main\n" \
            $forms >sources
        ! { apt_here update && "$@"; } >>log 2>&1 || return 0
    done
    cat log >&2
    return 1
}
