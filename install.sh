#!/bin/sh
# Installs ipam-delegated, its delegates and presets into a plugin folder, or takes them out again.
#
# Containers may start at any moment meanwhile: every name comes by a rename in its own folder, so it
# is never missing and never half written. Uses no network.
set -eu
export LC_ALL=C
unset CDPATH
umask 022
# A reader that has seen enough must not end the work half way.
trap '' PIPE

usage() {
    cat 2>/dev/null <<'END' || :
install.sh puts ipam-delegated, its delegates and presets into a plugin folder.

usage:
  ./install.sh [--preset NAME]... [--dir DIR] [--from DIR] [--logrotate] [--no-run] [--dry-run]
  ./install.sh --uninstall [--preset NAME]... [--dir DIR] [--logrotate] [--dry-run]

options:
  --dir DIR      the plugin folder; made when it is missing (default: /opt/cni/bin)
  --from DIR     the folder with the programs (default: bin beside install.sh, in a release archive;
                 in a source tree the static build, else the release build)
  --preset NAME  makes NAME a link to ipam-delegated, as in --preset host-local; may be repeated. The
                 presets are host-local, etcd, host-etcd, kube-node and node-annotation; another
                 name is refused. A plugin that stands there is kept as NAME.orig. With
                 --uninstall: gives back these names and leaves everything else.
  --logrotate    also /etc/logrotate.d/ipam-delegated
  --no-run       does not start each program once before it is put in place, for the image of
                 another kind of machine
  --uninstall    gives every NAME.orig its name back, then removes what install.sh has installed;
                 leases and records stay
  --dry-run      says what would be done, and does nothing
  --help         this
END
}

main() {
    here=$(cd "$(dirname "$0")" && pwd -P)
    dir=/opt/cni/bin from='' presets='' programs='' action=install
    dry='' logrotate='' try=yes
    parse "$@"
    case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
    if [ -d "$dir" ]; then dir=$(cd "$dir" && pwd -P); fi
    manifest=.ipam-delegated.installed rotation=/etc/logrotate.d/ipam-delegated
    "${action}_all"
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
        --*=*)
            option=${1%%=*} value=${1#*=}
            shift
            set -- "$option" "$value" "$@"
            ;;
        esac
        case $1 in
        --dir | --from | --preset)
            case ${2-} in '' | --*) misused "$1 needs a value" ;; esac
            case $1 in
            --dir) dir=$2 ;;
            --from) from=$2 ;;
            --preset) add_preset "$2" ;;
            esac
            shift
            ;;
        --logrotate) logrotate=yes ;;
        --no-run) try='' ;;
        --uninstall) action=uninstall ;;
        --dry-run) dry=yes ;;
        --help | -h)
            usage
            exit
            ;;
        *) misused "$1 is not understood" ;;
        esac
        shift
    done
    if [ "$action" = uninstall ] && [ -n "$from" ]; then misused "--uninstall takes no --from"; fi
}

add_preset() {
    case $1 in
    -* | *[!a-z0-9-]*) misused "--preset $1: a name has a-z, 0-9 and - only" ;;
    ipam-*) misused "--preset $1: names that begin with ipam- are delegates of their own" ;;
    esac
    case " $presets " in *" $1 "*) ;; *) presets="$presets $1" ;; esac
}

install_all() {
    find_programs
    check_places
    if [ -z "$dry" ]; then
        mkdir -p "$dir" || fail "cannot make $dir"
        lock
        stage
    fi
    say "install from $from into $dir"
    for name in $presets; do keep "$name"; done
    note_programs
    for name in $programs; do
        say "install $name"
        [ -n "$dry" ] || mv -fT "$dir/.$name.new.$$" "$dir/$name"
    done
    if [ -n "$logrotate" ]; then install_logrotate; fi
    # Last: what a link leads to, and all that its chain runs, is in place.
    for name in $presets; do link "$name"; done
}

# Sets `from` and `programs`.
find_programs() {
    build=''
    if [ -n "$from" ]; then
        case $from in /*) ;; *) from=$PWD/$from ;; esac
    elif [ -d "$here/bin" ]; then
        from=$here/bin
        if [ -f "$here/SHA256SUMS" ]; then
            (cd "$here" && grep ' bin/' SHA256SUMS | sha256sum -c - >/dev/null) ||
                fail "the programs in $from are damaged: unpack the archive again"
        fi
    elif [ -f "$here/Cargo.toml" ]; then
        target=$(uname -m)-unknown-linux-musl
        build="cargo build --release --workspace --bins"
        from=${CARGO_TARGET_DIR:-$here/target}
        if [ -f "$from/$target/release/ipam-delegated" ]; then
            from=$from/$target/release
            build="$build --target $target"
        else
            from=$from/release
        fi
    else
        fail "no bin beside install.sh: name the folder with the programs (--from DIR)"
    fi
    for file in "$from"/ipam-*; do
        name=${file##*/}
        if [ -f "$file" ] && is_shipped "$name" && [ "$name" != ipam-delegated ]; then
            programs="$programs $name"
        fi
    done
    # Last: a new chain may name a new delegate.
    programs="$programs ipam-delegated"
    [ -f "$from/ipam-delegated" ] || missing ipam-delegated
    if [ -n "$build" ]; then
        for folder in "$here"/delegates/ipam-*/; do
            name=$(basename "$folder")
            if is_shipped "$name" && [ ! -f "$from/$name" ]; then leave_out "$name"; fi
        done
    fi
    check_presets
    for name in $presets; do
        delegate=$(delegate_of "$name")
        case " $programs " in *" ${delegate:-ipam-delegated} "*) continue ;; esac
        is_there "$dir/$delegate" || fail "the preset $name needs $delegate, which is not in $from"
    done
}

# Refuses a name that is not a preset: its link would hide a plugin of this name, and run nothing.
check_presets() {
    known=''
    if [ -n "$presets" ] && [ -n "$try" ]; then
        known=$(env -i PATH="$PATH" "$from/ipam-delegated" help 2>/dev/null </dev/null |
            sed -n 's/^presets: //p' | tr -d ,)
    fi
    # One that cannot be asked, or that is older, has those of this release.
    known=${known:-host-local etcd host-etcd kube-node node-annotation}
    for name in $presets; do
        case " $known " in
        *" $name "*) ;;
        *) misused "--preset $name: unknown preset; choose one of $known" ;;
        esac
    done
}

# The delegate without which a preset gives no address, where a build, or an older release, may not have it.
delegate_of() {
    case $1 in
    etcd | host-etcd) echo ipam-da-etcd ;;
    kube-node) echo ipam-ds-kube-node ;;
    node-annotation) echo ipam-ds-node-annotation ;;
    esac
}

# A delegate that was not built is missing, but for one whose build needs more than Rust and that is
# not in the folder either: an old one beside a new chain would be half an upgrade.
leave_out() {
    needed=$(needs "$1")
    if [ -z "$needed" ] || is_there "$dir/$1"; then missing "$1"; fi
    tell "left out $1, which is not built: it needs $needed, then"
    tell "    (cd $here && $build)"
}

missing() {
    [ -n "$build" ] || fail "$1 is not in $from"
    needed=$(needs "$1")
    fail "$1 is not in $from: build it with${needed:+ $needed, and}" "    (cd $here && $build)"
}

# What the build of a program needs beside Rust.
needs() {
    case $1 in
    ipam-da-etcd) echo "protoc and its types (Debian: protobuf-compiler libprotobuf-dev, for a static build also musl-tools)" ;;
    esac
}

is_program() {
    case $1 in
    ipam-delegated) ;;
    # Cargo puts ipam-delegated.d and the like beside them.
    ipam-d[as]-*[!a-z0-9-]*) return 1 ;;
    ipam-d[as]-?*) ;;
    *) return 1 ;;
    esac
}

# Whether a program is for nodes: in a source tree its manifest says so.
is_shipped() {
    if ! is_program "$1"; then
        return 1
    elif [ -f "$here/delegates/$1/Cargo.toml" ]; then
        sed -n '/^\[package\.metadata\.ipam-delegated\]$/,/^\[/p' "$here/delegates/$1/Cargo.toml" |
            grep -x 'archive = "bin"' >/dev/null
    else
        [ -z "$build" ]
    fi
}

# All that can be told before anything is changed.
check_places() {
    existing=$dir
    until is_there "$existing"; do existing=$(dirname "$existing"); done
    [ -d "$existing" ] || fail "$existing is no folder"
    check_writable "$existing"
    for name in $programs $presets; do
        for file in "$dir/$name" "$dir/$name.orig"; do
            if is_there "$file" && [ ! -f "$file" ] && [ ! -L "$file" ]; then
                fail "$file is no file: move it away"
            fi
        done
    done
    need=64
    for name in $programs; do need=$((need + $(wc -c <"$from/$name") / 1024 + 4)); done
    free=$(df -Pk "$existing" | sed -n '2s/.* \([0-9][0-9]*\)  *[0-9]*% .*/\1/p')
    if [ "${free:-$need}" -lt "$need" ]; then
        fail "$existing has $free KiB free, and $need KiB are needed; nothing was changed"
    fi
    if [ -n "$logrotate" ]; then check_logrotate; fi
}

check_writable() {
    if [ ! -w "$1" ] || [ ! -x "$1" ]; then
        fail "cannot write to $1: run as root, or name another folder (--dir DIR)"
    fi
}

# Keeps other runs of install.sh out, and removes what one that was killed has left.
lock() {
    command -v flock >/dev/null || fail "flock (util-linux) is missing"
    exec 9<"$dir"
    flock -n 9 || {
        tell "waiting for another install.sh"
        flock 9
    }
    trap sweep EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    sweep
}

# Only who holds the lock may call it.
sweep() {
    rm -f "$dir"/.ipam-delegated*.new.[0-9]* "$dir"/.ipam-d[as]-*.new.[0-9]* "$dir"/.*.orig.new.[0-9]*
    for name in $presets; do rm -f "$dir/.$name.new."[0-9]*; done
}

# Puts the programs into the folder under names that nobody calls, and tries them there.
stage() {
    for name in $programs; do
        new=$dir/.$name.new.$$
        cp "$from/$name" "$new" && chmod 755 "$new" || fail "cannot write $new; nothing was changed"
        # Or else a power loss might leave a name without content. Where one file cannot be synced,
        # this does no harm.
        sync "$new" 2>/dev/null || :
        [ -n "$try" ] || continue
        said=$(env -i PATH="$PATH" CNI_COMMAND=VERSION "$new" 2>&1 </dev/null 9<&-) ||
            fail "$from/$name does not run on this machine: $said" \
                "Nothing was changed. --no-run installs it all the same."
    done
}

# Keeps what the link of a preset is about to replace.
keep() {
    if ! is_there "$dir/$1" || is_own "$dir/$1" || is_same "$dir/$1" "$dir/$1.orig"; then
        return
    elif ! is_there "$dir/$1.orig"; then
        say "keep $1 as $1.orig"
    elif [ "$dir/$1" -ot "$dir/$1.orig" ]; then
        say "keep $1, which is no link, as $1.orig in place of the one kept before, which is newer"
    else
        say "keep $1, which is no link, as $1.orig in place of the one kept before"
    fi
    [ -n "$dry" ] || place "$dir/$1" "$1.orig"
}

link() {
    if [ "$(readlink "$dir/$1")" = ipam-delegated ]; then
        return
    fi
    say "link $1 to ipam-delegated"
    [ -z "$dry" ] || return 0
    ln -s ipam-delegated "$dir/.$1.new.$$"
    mv -fT "$dir/.$1.new.$$" "$dir/$1"
}

# Gives a file a second name, over what has that name.
place() {
    new=$dir/.$2.new.$$
    ln "$1" "$new" 2>/dev/null || cp -pP "$1" "$new"
    mv -fT "$new" "$dir/$2"
}

# Adds the programs to the list of what is ours. It is first on file: a kill leaves nothing unlisted.
note_programs() {
    [ -z "$dry" ] || return 0
    {
        for name in $programs; do echo "$name"; done
        listed
    } | sort -u >"$dir/$manifest.new.$$"
    mv -fT "$dir/$manifest.new.$$" "$dir/$manifest"
}

# The programs that install.sh has put here, the chain first.
listed() {
    [ -f "$dir/$manifest" ] || return 0
    if grep -qx ipam-delegated "$dir/$manifest"; then echo ipam-delegated; fi
    while read -r name; do
        if is_program "$name" && [ "$name" != ipam-delegated ]; then echo "$name"; fi
    done <"$dir/$manifest"
}

uninstall_all() {
    if [ ! -d "$dir" ]; then
        tell "nothing to uninstall: there is no folder $dir"
        return
    fi
    check_writable "$dir"
    wanted=$presets
    [ -n "$dry" ] || lock
    presets=$(own_links)
    for name in $wanted; do
        case " $presets " in *" $name "*) ;; *) tell "left $name: it is no link to ipam-delegated" ;; esac
    done
    for name in $presets; do give_back "$name"; done
    if [ -z "$wanted" ]; then
        programs=$(listed | tr '\n' ' ')
        say_records
        if [ -n "$logrotate" ]; then uninstall_logrotate; fi
    fi
    # A chain that was started through a link still needs its delegates, and may name NAME.orig.
    wait_for_calls
    [ -n "$dry" ] || for name in $presets; do rm -f "$dir/$name.orig"; done
    for name in $programs; do
        is_there "$dir/$name" || continue
        say "remove $name"
        [ -n "$dry" ] || rm -f "$dir/$name"
    done
    [ -n "$wanted" ] || say_left
    if [ -z "$presets$programs" ]; then tell "nothing of ours is in $dir"; fi
}

# The names of the links to ipam-delegated, of all or of those wanted.
own_links() {
    for file in "$dir"/*; do
        name=${file##*/}
        case " ${wanted:-$name} " in *" $name "*) ;; *) continue ;; esac
        # Other names were never given by install.sh.
        case $name in ipam-* | *[!a-z0-9-]*) continue ;; esac
        if [ -L "$file" ] && is_own "$file"; then printf '%s ' "$name"; fi
    done
}

# Puts the kept plugin in the place of a preset's link.
give_back() {
    if is_there "$dir/$1.orig" && ! is_own "$dir/$1.orig"; then
        say "restore $1 from $1.orig"
        [ -n "$dry" ] || place "$dir/$1.orig" "$1"
    else
        say "remove the link $1"
        [ -n "$dry" ] || rm -f "$dir/$1"
    fi
}

wait_for_calls() {
    [ -z "$dry" ] && [ -n "$presets$programs" ] || return 0
    tries=50
    while ls -l /proc/[0-9]*/exe 2>/dev/null | grep -qF " -> $dir/ipam-delegated"; do
        [ "$tries" != 50 ] || tell "waiting up to 10 s for calls that are under way"
        tries=$((tries - 1))
        if [ "$tries" = 0 ]; then
            tell "calls are still under way; going on"
            break
        fi
        sleep 0.2
    done
}

# Says what a DEL will find, while the program is still there to tell.
say_records() {
    [ -n "$programs" ] && [ -x "$dir/ipam-delegated" ] || return 0
    table=$(env -i PATH="$PATH" "$dir/ipam-delegated" attachments 2>/dev/null </dev/null 9<&-) || return 0
    records=$(($(echo "$table" | wc -l) - 1))
    [ "$records" -gt 0 ] || return 0
    cat 2>/dev/null <<END || :
attachments that have their addresses from a chain: $records. Their records stay.
  Networks that name a replaced plugin release through the plugin that is restored (host-local reads
  the same lease files). Networks that name ipam-delegated need it back for their DEL.
END
}

say_left() {
    removed=" $programs "
    [ -n "$dry" ] || rm -f "$dir/$manifest"
    for file in "$dir"/ipam-d* "$dir"/*.orig; do
        name=${file##*/}
        case "$removed $presets " in *" $name "* | *" ${name%.orig} "*) continue ;; esac
        if ! is_there "$file"; then
            continue
        elif [ "$name" != "${name%.orig}" ]; then
            tell "left $name: ${name%.orig} is no link to ipam-delegated"
        elif is_program "$name"; then
            tell "left $name: install.sh did not put it there"
        fi
    done
    if [ -z "$logrotate" ] && [ -e "$rotation" ]; then
        tell "left $rotation: --uninstall --logrotate removes it"
    fi
}

check_logrotate() {
    [ -f "$here/examples/logrotate.conf" ] || fail "examples/logrotate.conf is not beside install.sh"
    [ -d "${rotation%/*}" ] || fail "--logrotate: there is no folder ${rotation%/*}"
    [ -w "${rotation%/*}" ] || fail "--logrotate: cannot write to ${rotation%/*}: run as root"
}

install_logrotate() {
    say "install $rotation"
    [ -z "$dry" ] || return 0
    new=${rotation%/*}/.ipam-delegated.new.$$
    cp "$here/examples/logrotate.conf" "$new"
    chmod 644 "$new"
    mv -fT "$new" "$rotation"
}

uninstall_logrotate() {
    [ -e "$rotation" ] || return 0
    say "remove $rotation"
    [ -n "$dry" ] || rm -f "$rotation"
}

# Whether a name is taken, if only by a link that leads nowhere.
is_there() {
    [ -e "$1" ] || [ -L "$1" ]
}

# Whether a file is our program under another name: as a link, or as a copy.
is_own() {
    if [ -L "$1" ]; then
        case $(readlink "$1") in ipam-delegated | ./ipam-delegated | "$dir/ipam-delegated") return 0 ;; esac
    fi
    [ "$1" -ef "$dir/ipam-delegated" ] || cmp -s "$1" "$dir/ipam-delegated" ||
        { [ -n "$from" ] && cmp -s "$1" "$from/ipam-delegated"; }
}

is_same() {
    [ "$1" -ef "$2" ] || { [ ! -L "$1" ] && [ ! -L "$2" ] && cmp -s "$1" "$2"; }
}

# Says what is done next.
say() {
    tell "${dry:+would }$*"
}

# Says something, if there is still a reader.
tell() {
    echo "$*" 2>/dev/null || :
}

fail() {
    printf 'install.sh: %s\n' "$1" >&2
    shift
    [ $# = 0 ] || printf '%s\n' "$@" >&2
    exit 1
}

misused() {
    printf 'install.sh: %s\n\n' "$1" >&2
    usage >&2
    exit 2
}

main "$@"
