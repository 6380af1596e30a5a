#!/bin/sh
# Installs ipam-delegated, its delegates and presets into a plugin folder, or removes them.
#
# Containers may start at any moment: each name is replaced by a rename in its own folder, so it is
# never missing and never half written. Uses no network.
set -eu
export LC_ALL=C
unset CDPATH
umask 022
# A reader such as `head` that ends early must not end the work halfway.
trap '' PIPE

synopsis() {
    cat 2>/dev/null <<'END' || :
usage:
  ./install.sh [--preset NAME]... [--only NAMES] [--dir DIR] [--from DIR] [--logrotate]
               [--no-run] [--dry-run]
  ./install.sh --uninstall [--preset NAME]... [--dir DIR] [--logrotate] [--dry-run]
END
}

usage() {
    printf '%s\n\n' 'install.sh installs ipam-delegated, its delegates and presets into a plugin folder.' \
        2>/dev/null || :
    synopsis
    cat 2>/dev/null <<'END' || :

options:
  --dir DIR      the plugin folder; created if it is missing (default: /opt/cni/bin)
  --preset NAME  makes NAME a link to ipam-delegated, as in --preset host-local; may be repeated.
                 Presets: host-local, etcd, host-etcd, kube-node, node-annotation, whereabouts
                 (a copy). An existing plugin of this name is kept as NAME.orig. With
                 --uninstall: restores these names and leaves everything else.
  --only NAMES   installs these programs and leaves all others as they are, as in
                 --only ipam-delegated,ipam-ds-static,ipam-da-local
  --from DIR     the folder with the programs (default: bin beside install.sh, in a release
                 archive; in a source tree the static build, else the release build)
  --logrotate    also installs, or with --uninstall removes, /etc/logrotate.d/ipam-delegated
  --no-run       does not start each program once before it is installed; for an image of
                 another kind of machine
  --uninstall    restores each NAME.orig, then removes what install.sh has installed; leases and
                 records stay
  --dry-run      says what would be done, and changes nothing
  --help         prints this text
END
}

main() {
    here=$(cd "$(dirname "$0")" && pwd -P)
    dir=/opt/cni/bin from='' presets='' only='' programs='' action=install
    dry='' logrotate='' try=yes
    parse "$@"
    case $dir in /*) ;; *) dir=$PWD/$dir ;; esac
    resolve_dir
    manifest=.ipam-delegated.installed rotation=/etc/logrotate.d/ipam-delegated
    shortcut=/usr/local/sbin/ipam-delegated
    # Presets that are copies of ipam-delegated: the DaemonSet of the plugin that such a preset
    # replaces writes through a link, into ipam-delegated itself.
    copied=whereabouts
    # By this file, the preset whereabouts takes addresses from a server that it names.
    provider_file=/etc/cni/net.d/whereabouts.d/whereabouts-ipam.conf
    # Selectors that are part of ipam-delegated: under a link the chain starts no process for them.
    built_in=ipam-ds-static
    "${action}_all"
}

# Gives the folder the path by which links and running programs are found again.
resolve_dir() {
    if [ -d "$dir" ]; then dir=$(cd "$dir" && pwd -P); fi
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
        --dir | --from | --only | --preset)
            case ${2-} in '' | --*) misused "$1 needs a value" ;; esac
            case $1 in
            --dir) dir=$2 ;;
            --from) from=$2 ;;
            --only) add_only "$2" ;;
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
        *) misused "unknown option $1" ;;
        esac
        shift
    done
    if [ "$action" = uninstall ] && [ -n "$from$only" ]; then
        misused "--uninstall takes neither --from nor --only"
    fi
}

add_preset() {
    case $1 in
    -* | *[!a-z0-9-]*) misused "--preset $1: expected a name of a-z, 0-9 and -" ;;
    ipam-*) misused "--preset $1: a preset does not begin with ipam-" ;;
    esac
    case " $presets " in *" $1 "*) ;; *) presets="$presets $1" ;; esac
}

add_only() {
    case $1 in *[!a-z0-9,\ -]*) misused "--only $1: expected names of a-z, 0-9 and -, with commas between" ;; esac
    only="$only $(echo "$1" | tr , ' ')"
}

install_all() {
    find_programs
    ask_program
    for name in $copied; do
        if is_listed "$name" && is_own "$dir/$name"; then add_preset "$name"; fi
    done
    check_presets
    check_places
    if [ -z "$dry" ]; then
        mkdir -p "$dir" || fail "cannot make $dir"
        resolve_dir
        lock
        stage
    fi
    upgraded=''
    if is_there "$dir/ipam-delegated"; then upgraded=yes; fi
    say "install from $from into $dir"
    for name in $presets; do keep "$name"; done
    note_programs
    for name in $programs; do
        say "install $name"
        if [ -n "$dry" ] || is_linked "$name"; then continue; fi
        mv -fT "$dir/.$name.new.$$" "$dir/$name"
    done
    # After ipam-delegated: an older one would refuse a link to itself.
    for name in $programs; do
        if [ -z "$dry" ] && is_linked "$name"; then make_link "$name"; fi
    done
    if [ -n "$logrotate" ]; then install_logrotate; fi
    # Last: the preset's program and all that its chain runs are in place.
    for name in $presets; do
        if is_copied "$name"; then copy "$name"; else link "$name"; fi
    done
    [ -n "$dry" ] || say_next
}

# Sets `from` and `programs`, the chain last: a new chain may name a new delegate.
find_programs() {
    find_folder
    if [ -n "$only" ]; then
        choose_programs
    else
        take_programs
    fi
}

# Sets `from`, and in a source tree `build`.
find_folder() {
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
}

# Takes every program that is there. An archive has all; a source tree what was built.
take_programs() {
    [ -f "$from/ipam-delegated" ] || missing ipam-delegated
    for file in "$from"/ipam-*; do
        name=${file##*/}
        if [ -f "$file" ] && is_shipped "$name" && [ "$name" != ipam-delegated ]; then
            programs="$programs $name"
        fi
    done
    programs="$programs ipam-delegated"
    left=''
    if [ -n "$build" ]; then
        for folder in "$here"/delegates/ipam-*/; do
            name=$(basename "$folder")
            if ! is_shipped "$name" || [ -f "$from/$name" ]; then continue; fi
            # Half an upgrade: an old delegate beside a new chain.
            if is_there "$dir/$name"; then missing "$name"; fi
            left="$left $name"
        done
    fi
    [ -z "$left" ] || say_left_out
}

# Takes the programs of --only.
choose_programs() {
    chain=''
    for name in $only; do
        if [ "$name" = ipam-delegated ]; then
            chain=$name
        elif ! is_shipped "$name" || { [ -n "$build" ] && [ ! -d "$here/delegates/$name" ]; }; then
            misused "--only $name: unknown program; choose among" $(known_programs)
        else
            case " $programs " in *" $name "*) ;; *) programs="$programs $name" ;; esac
        fi
        [ -f "$from/$name" ] || missing "$name"
    done
    programs="$programs $chain"
    case $programs in *ipam-*) ;; *) misused "--only needs a name" ;; esac
    if [ -z "$chain" ] && ! is_there "$dir/ipam-delegated"; then
        fail "--only leaves out ipam-delegated, which is not in $dir: name it, too"
    fi
    others=$(listed | while read -r name; do
        case " $programs " in *" $name "*) ;; *) printf ' %s' "$name" ;; esac
    done)
    [ -z "$others" ] || tell "left as they are:$others"
}

# Prints what --only may name.
known_programs() {
    echo ipam-delegated
    for file in "$from"/ipam-* "$here"/delegates/ipam-*/; do
        name=$(basename "$file")
        if is_there "$file" && is_shipped "$name"; then echo "$name"; fi
    done | grep -v '^ipam-delegated$' | sort -u
}

# Asks the ipam-delegated of this run what it has. One of another version may lack a
# built-in selector, and would refuse a link to itself.
ask_program() {
    help=''
    case " $programs " in *" ipam-delegated "*) ;; *) return 0 ;; esac
    [ -n "$try" ] && [ -f "$from/ipam-delegated" ] || return 0
    help=$(env -i PATH="$PATH" "$from/ipam-delegated" help 2>/dev/null </dev/null) || help=''
    [ -n "$help" ] || return 0
    built_in=$(echo "$help" | sed -n 's/^built in: //p' | tr -d ,)
    for file in "$dir"/ipam-d[as]-*; do
        name=${file##*/}
        [ "$(readlink "$file")" = ipam-delegated ] || continue
        case " $built_in $programs " in *" $name "*) continue ;; esac
        fail "$file is a link to ipam-delegated, and this version is not $name: install it, too" \
            "    (--only with ipam-delegated and $name)"
    done
}

# Refuses an unknown preset, which would hide a plugin of this name and run nothing, and one whose
# delegates are missing.
check_presets() {
    known=$(echo "$help" | sed -n 's/^presets: //p' | tr -d ,)
    # One that cannot be asked, or that is older, has those of this release.
    known=${known:-host-local etcd host-etcd kube-node node-annotation whereabouts}
    case " $presets " in *" whereabouts "*) find_provider ;; esac
    for name in $presets; do
        case " $known " in
        *" $name "*) ;;
        *) misused "--preset $name: unknown preset; choose one of $known" ;;
        esac
        for delegate in $(delegates_of "$name"); do
            case " $programs " in *" $delegate "*) continue ;; esac
            if is_there "$dir/$delegate"; then continue; fi
            [ -z "$build" ] || [ -f "$from/$delegate" ] || missing "$delegate"
            fail "the preset $name needs $delegate, which is neither in $dir nor installed now"
        done
    done
}

# The delegates of a preset. A build, an older release or --only may lack them.
delegates_of() {
    case $1 in
    host-local) echo ipam-ds-static ipam-da-local ;;
    etcd | host-etcd) echo ipam-ds-static ipam-da-etcd ;;
    kube-node) echo ipam-ds-kube-node ipam-da-local ;;
    node-annotation) echo ipam-ds-node-annotation ipam-da-local ;;
    whereabouts) echo ipam-ds-whereabouts ipam-ds-kube-pod "ipam-da-$provider" ;;
    esac
}

# Sets `provider`, which holds the addresses of the preset whereabouts.
find_provider() {
    provider=kube
    is_there "$provider_file" || return 0
    text=$(cat "$provider_file") || fail "cannot read $provider_file: run it as root"
    named=$(printf %s "$text" | tr '\n' ' ' | sed -n 's/.*"ipamtype"[[:space:]]*:[[:space:]]*"\([^"]*\)".*/\1/p')
    case $named in
    phpipam | openwisp) provider=$named ;;
    nsxtipam)
        fail "$provider_file names nsxtipam, which the preset whereabouts does not support:" \
            "    keep the plugin on this node"
        ;;
    esac
}

say_left_out() {
    tell "left out, because they are not built:$left"
    tell "    to build them: (cd $here && $build)"
    for name in $left; do
        needed=$(needs "$name")
        [ -z "$needed" ] || tell "    the build of $name needs $needed"
    done
}

missing() {
    [ -n "$build" ] || fail "$1 is not in $from"
    needed=$(needs "$1") older=''
    if [ "$1" != ipam-delegated ] && [ -z "$only" ] && is_there "$dir/$1"; then
        older="To keep the older one in $dir, name the programs to install (--only NAMES)."
    fi
    fail "$1 is not in $from: build it with${needed:+ $needed, and}" \
        "    (cd $here && $build)" ${older:+"$older"}
}

# Prints what the build of a program needs besides Rust.
needs() {
    case $1 in
    ipam-da-etcd) echo "protoc and its types (Debian: protobuf-compiler libprotobuf-dev)" ;;
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

# Whether a program is for nodes. In a source tree its manifest says so.
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

# Checks all that can be checked before anything is changed.
check_places() {
    existing=$dir
    until is_there "$existing"; do existing=$(dirname "$existing"); done
    [ -d "$existing" ] || fail "$existing is not a folder: name another one (--dir DIR)"
    check_writable "$existing"
    for name in $programs $presets; do
        for file in "$dir/$name" "$dir/$name.orig"; do
            if is_there "$file" && [ ! -f "$file" ] && [ ! -L "$file" ]; then
                fail "$file is not a regular file: move it away"
            fi
        done
    done
    need=64
    for name in $programs; do need=$((need + $(wc -c <"$from/$name") / 1024 + 4)); done
    for name in $presets; do
        if is_copied "$name"; then need=$((need + $(wc -c <"$(own_program)") / 1024 + 4)); fi
    done
    free=$(df -Pk "$existing" | sed -n '2s/.* \([0-9][0-9]*\)  *[0-9]*% .*/\1/p')
    if [ "${free:-$need}" -lt "$need" ]; then
        fail "$existing has $free KiB free, and $need KiB are needed; nothing was changed"
    fi
    if [ -n "$logrotate" ]; then check_logrotate; fi
}

check_writable() {
    if [ ! -w "$1" ] || [ ! -x "$1" ]; then
        fail "cannot write to $1: run it as root, or name another folder (--dir DIR)"
    fi
}

# Keeps other runs of install.sh out, and removes the remains of a killed one.
lock() {
    command -v flock >/dev/null || fail "flock is missing: install util-linux"
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

# Call it only under the lock.
sweep() {
    rm -f "$dir"/.ipam-delegated*.new.[0-9]* "$dir"/.ipam-d[as]-*.new.[0-9]* "$dir"/.*.orig.new.[0-9]*
    for name in $presets $copied; do rm -f "$dir/.$name.new."[0-9]*; done
}

# Puts the programs into the folder under names that no runtime calls, and tries them there.
stage() {
    for name in $programs; do
        if is_linked "$name"; then continue; fi
        new=$dir/.$name.new.$$
        cp "$from/$name" "$new" && chmod 755 "$new" || fail "cannot write $new; nothing was changed"
        # Without it a power loss might leave a name without content. A system that cannot sync one
        # file goes on.
        sync "$new" 2>/dev/null || :
        [ -n "$try" ] || continue
        said=$(env -i PATH="$PATH" CNI_COMMAND=VERSION "$new" 2>&1 </dev/null 9<&-) ||
            fail "$from/$name does not run on this machine: $said" \
                "Nothing was changed. --no-run installs it without a try."
    done
}

# Keeps the plugin that a preset is about to replace.
keep() {
    if ! is_there "$dir/$1" || is_own "$dir/$1"; then
        return
    elif [ ! -L "$dir/$1.orig" ] && is_same "$dir/$1" "$dir/$1.orig"; then
        return
    elif ! is_there "$dir/$1.orig"; then
        say "keep $1 as $1.orig"
    elif [ "$dir/$1" -ot "$dir/$1.orig" ]; then
        say "keep $1, a plugin, as $1.orig, and drop the $1.orig of before, which is newer"
    else
        say "keep $1, a plugin, as $1.orig, and drop the $1.orig of before"
    fi
    [ -n "$dry" ] || place "$dir/$1" "$1.orig"
}

link() {
    if [ "$(readlink "$dir/$1")" = ipam-delegated ]; then
        return
    fi
    say "link $1 to ipam-delegated"
    [ -n "$dry" ] || make_link "$1"
}

make_link() {
    ln -s ipam-delegated "$dir/.$1.new.$$"
    mv -fT "$dir/.$1.new.$$" "$dir/$1"
}

copy() {
    if [ ! -L "$dir/$1" ] && [ ! "$dir/$1" -ef "$dir/ipam-delegated" ] && cmp -s "$dir/$1" "$(own_program)"; then
        return
    fi
    say "copy ipam-delegated to $1"
    [ -z "$dry" ] || return 0
    new=$dir/.$1.new.$$
    cp "$(own_program)" "$new" && chmod 755 "$new" || fail "cannot write $new; $1 stays as it is"
    sync "$new" 2>/dev/null || :
    mv -fT "$new" "$dir/$1"
}

# The file that is ipam-delegated at the end of this run.
own_program() {
    case " $programs " in
    *" ipam-delegated "*) echo "$from/ipam-delegated" ;;
    *) echo "$dir/ipam-delegated" ;;
    esac
}

# Whether a program is installed as a link, since this run installs the ipam-delegated that it is in.
is_linked() {
    case " $programs " in *" ipam-delegated "*) ;; *) return 1 ;; esac
    case " $built_in " in *" $1 "*) ;; *) return 1 ;; esac
}

is_copied() {
    case " $copied " in *" $1 "*) ;; *) return 1 ;; esac
}

# Gives a file a second name, and replaces the file of that name.
place() {
    new=$dir/.$2.new.$$
    ln "$1" "$new" 2>/dev/null || cp -pP "$1" "$new"
    mv -fT "$new" "$dir/$2"
}

# Adds programs and copies to the list of ours. The list is written first: a kill leaves nothing
# unlisted.
note_programs() {
    [ -z "$dry" ] || return 0
    {
        for name in $programs; do echo "$name"; done
        listed
        for name in $presets; do
            if is_copied "$name"; then echo "$name"; fi
        done
        # One that another installer has overwritten stays in the list: lint warns of it.
        for name in $copied; do
            if is_listed "$name"; then echo "$name"; fi
        done
    } | sort -u >"$dir/$manifest.new.$$"
    mv -fT "$dir/$manifest.new.$$" "$dir/$manifest"
}

is_listed() {
    grep -qx "$1" "$dir/$manifest" 2>/dev/null
}

unlist() {
    if ! is_listed "$1"; then return; fi
    grep -vx "$1" "$dir/$manifest" >"$dir/$manifest.new.$$" || :
    mv -fT "$dir/$manifest.new.$$" "$dir/$manifest"
}

# Prints the programs that install.sh has put here, the chain first.
listed() {
    [ -f "$dir/$manifest" ] || return 0
    if grep -qx ipam-delegated "$dir/$manifest"; then echo ipam-delegated; fi
    while read -r name; do
        if is_program "$name" && [ "$name" != ipam-delegated ]; then echo "$name"; fi
    done <"$dir/$manifest"
}

uninstall_all() {
    if [ ! -d "$dir" ]; then
        tell "nothing to uninstall: $dir does not exist"
        return
    fi
    check_writable "$dir"
    wanted=$presets
    [ -n "$dry" ] || lock
    presets=$(own_presets)
    for name in $wanted; do
        case " $presets " in *" $name "*) ;; *) tell "left $name: it is not ipam-delegated" ;; esac
    done
    for name in $presets; do give_back "$name"; done
    [ -n "$dry" ] || for name in $wanted; do unlist "$name"; done
    if [ -z "$wanted" ]; then
        programs=$(listed | tr '\n' ' ')
        say_records
        if [ -n "$logrotate" ]; then uninstall_logrotate; fi
    fi
    # A chain that was started through a link still needs its delegates, and may call NAME.orig.
    wait_for_calls
    [ -n "$dry" ] || for name in $presets; do rm -f "$dir/$name.orig"; done
    for name in $programs; do
        is_there "$dir/$name" || continue
        say "remove $name"
        [ -n "$dry" ] || rm -f "$dir/$name"
    done
    if [ -z "$wanted" ]; then
        remove_shortcut
        say_left
    fi
    if [ -z "$presets$programs" ]; then tell "install.sh has installed nothing in $dir"; fi
}

# Prints the names of presets that are ipam-delegated: all, or those wanted.
own_presets() {
    for file in "$dir"/*; do
        name=${file##*/}
        case " ${wanted:-$name} " in *" $name "*) ;; *) continue ;; esac
        # install.sh never makes other names.
        case $name in ipam-* | *[!a-z0-9-]*) continue ;; esac
        if { [ -L "$file" ] || is_copied "$name"; } && is_own "$file"; then printf '%s ' "$name"; fi
    done
}

# Replaces a preset with the kept plugin.
give_back() {
    if is_there "$dir/$1.orig" && ! is_own "$dir/$1.orig"; then
        say "restore $1 from $1.orig"
        [ -n "$dry" ] || place "$dir/$1.orig" "$1"
    else
        say "remove $1"
        [ -n "$dry" ] || rm -f "$dir/$1"
    fi
}

wait_for_calls() {
    [ -z "$dry" ] && [ -n "$presets$programs" ] || return 0
    tries=50
    # A copy that was given back is a deleted file, and the plugin now has its name.
    running=" -> $dir/ipam-delegated"
    for name in $copied; do running=$running$(printf '\n%s' " -> $dir/$name (deleted)"); done
    while ls -l /proc/[0-9]*/exe 2>/dev/null | grep -qF "$running"; do
        [ "$tries" != 50 ] || tell "waiting up to 10 s for running calls"
        tries=$((tries - 1))
        if [ "$tries" = 0 ]; then
            tell "some calls still run; going on"
            break
        fi
        sleep 0.2
    done
}

# Says what a DEL will find, while the program still exists.
say_records() {
    [ -n "$programs" ] && [ -x "$dir/ipam-delegated" ] || return 0
    table=$(env -i PATH="$PATH" "$dir/ipam-delegated" attachments 2>/dev/null </dev/null 9<&-) || return 0
    records=$(($(echo "$table" | wc -l) - 1))
    [ "$records" -gt 0 ] || return 0
    cat 2>/dev/null <<END || :
records of attachments on this node: $records. They stay.
  A network that names a replaced plugin releases through the restored plugin (host-local reads the
  same lease files). A network that names ipam-delegated needs it installed for its DEL.
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
            tell "left $name: ${name%.orig} is not ipam-delegated"
        elif is_program "$name"; then
            tell "left $name: install.sh did not install it"
        fi
    done
    if [ -z "$logrotate" ] && [ -e "$rotation" ]; then
        tell "left $rotation: --uninstall --logrotate removes it"
    fi
}

check_logrotate() {
    [ -f "$here/examples/logrotate.conf" ] || fail "--logrotate: examples/logrotate.conf is not beside install.sh"
    [ -d "${rotation%/*}" ] || fail "--logrotate: ${rotation%/*} does not exist: install logrotate"
    [ -w "${rotation%/*}" ] || fail "--logrotate: cannot write to ${rotation%/*}: run it as root"
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

# Whether a name is taken, even by a link that leads nowhere.
is_there() {
    [ -e "$1" ] || [ -L "$1" ]
}

# Whether a file is our program under another name: as a link, or as a copy. A copy of another
# version, as a killed run leaves it, is in the list and names the program.
is_own() {
    if [ -L "$1" ]; then
        case $(readlink "$1") in ipam-delegated | ./ipam-delegated | "$dir/ipam-delegated") return 0 ;; esac
    fi
    [ "$1" -ef "$dir/ipam-delegated" ] || cmp -s "$1" "$dir/ipam-delegated" ||
        { [ -n "$from" ] && cmp -s "$1" "$from/ipam-delegated"; } ||
        { is_listed "${1##*/}" && grep -qF ipam-delegated "$1" 2>/dev/null; }
}

is_same() {
    [ "$1" -ef "$2" ] || { [ ! -L "$1" ] && [ ! -L "$2" ] && cmp -s "$1" "$2"; }
}

# Removes the link in PATH that say_next proposes.
remove_shortcut() {
    if [ "$(readlink "$shortcut")" != "$dir/ipam-delegated" ]; then return; fi
    case " $programs " in
    *" ipam-delegated "*) ;;
    *) if is_there "$dir/ipam-delegated"; then return; fi ;;
    esac
    if [ ! -w "${shortcut%/*}" ]; then
        tell "left $shortcut: run it as root to remove it"
        return
    fi
    say "remove $shortcut"
    [ -n "$dry" ] || rm -f "$shortcut"
}

# Says what to do now, as commands that can be pasted.
say_next() {
    example=$here/examples/10-ipam-delegated-local.conflist
    command=$(quoted "$dir/ipam-delegated")
    tell
    if [ -n "$presets" ]; then
        tell "next: check each network whose ipam.type is $(echo $presets | sed 's/ / or /g'):"
        tell "  $command lint NETWORK"
    elif [ -n "$upgraded" ] || [ ! -f "$example" ]; then
        tell "next: check each of your networks:"
        tell "  $command lint NETWORK"
    else
        tell "next: copy an example network, and check it (docs/guide.md has others):"
        tell "  install -D -m 644 -t /etc/cni/net.d $(quoted "$example")"
        tell "  $command lint racknet"
    fi
    if [ -d "${shortcut%/*}" ] && ! is_there "$shortcut"; then
        tell "to call it without its folder (--uninstall removes this link):"
        tell "  ln -s $command $shortcut"
    fi
}

# Prints a path as a shell reads it.
quoted() {
    case $1 in
    *[!A-Za-z0-9/._-]*) printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" ;;
    *) printf %s "$1" ;;
    esac
}

# Says a step, or in a dry run that it would be done.
say() {
    tell "${dry:+would }$*"
}

# Prints a line, if it still has a reader.
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
    printf 'install.sh: %s\n\n' "$*" >&2
    synopsis >&2
    echo "--help says what each option does" >&2
    exit 2
}

main "$@"
