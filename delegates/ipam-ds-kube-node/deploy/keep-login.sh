#!/bin/sh
# Keeps a login to the Kubernetes API server in a folder of the host, for programs that run there and in
# no pod:
#
#   keep-login.sh FOLDER
#
# It copies token and authority of the pod's service account, which the kubelet renews, and writes a
# kubeconfig that names them. Each file comes by a rename, and is for its owner alone.
#
#   SERVICE_ACCOUNT  the folder with the service account
#   API_SERVER       the URL of the API server, where the host does not reach that of the pod
#   EVERY            seconds between two looks; the kubelet renews a token long before it ends
set -u
export LC_ALL=C
umask 077

folder=$1
account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
kept=

main() {
    trap 'exit 0' TERM INT
    while :; do
        keep || echo "keep-login.sh: the login in $folder stays as it is" >&2
        sleep "${EVERY:-60}" &
        wait $!
    done
}

# Writes the login where it is another one than this loop has written, or where it is missing: what a
# newer pod has written beside us stays.
keep() {
    token=$(cat "$account/token") && [ -n "$token" ] && authority=$(cat "$account/ca.crt") || return
    found="$token $authority"
    if [ "$found" = "$kept" ] && [ -s "$folder/token" ] && [ -s "$folder/kubeconfig" ]; then
        return
    fi
    mkdir -p "$folder" || return
    printf '%s\n' "$authority" | put ca.crt && printf %s "$token" | put token && kubeconfig | put kubeconfig || return
    kept=$found
    echo "keep-login.sh: wrote the login in $folder"
}

# Puts stdin into a file of the folder.
put() {
    cat >"$folder/.$1.new" && [ -s "$folder/.$1.new" ] && mv -f "$folder/.$1.new" "$folder/$1"
}

# Its paths begin where it lies.
kubeconfig() {
    server=${API_SERVER:-$(server)}
    cat <<END
apiVersion: v1
kind: Config
current-context: ipam-delegated
contexts:
- name: ipam-delegated
  context: {cluster: here, user: ipam-delegated}
clusters:
- name: here
  cluster: {server: "$server", certificate-authority: ca.crt}
users:
- name: ipam-delegated
  user: {tokenFile: token}
END
}

server() {
    case $KUBERNETES_SERVICE_HOST in
    *:*) echo "https://[$KUBERNETES_SERVICE_HOST]:$KUBERNETES_SERVICE_PORT" ;;
    *) echo "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT" ;;
    esac
}

main
