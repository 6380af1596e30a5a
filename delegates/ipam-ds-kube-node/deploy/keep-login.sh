#!/bin/sh
# Keeps credentials for the Kubernetes API server in a folder of the host, for programs that run
# there outside of pods:
#
#   keep-login.sh FOLDER
#
# It copies the token and the CA of the pod's service account, which the kubelet renews, and writes a
# kubeconfig that names them. Each file is replaced by a rename, and is for its owner alone.
#
#   SERVICE_ACCOUNT  the folder with the service account
#   API_SERVER       the URL of the API server, if the host does not reach that of the pod
#   FILE             the name of the kubeconfig, if it is not kubeconfig
#   NAMESPACE        the namespace of the kubeconfig's context
#   EVERY            seconds between two checks; the kubelet renews a token long before it ends
set -u
export LC_ALL=C
umask 077

folder=$1
account=${SERVICE_ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
file=${FILE:-kubeconfig}
kept=

main() {
    trap 'exit 0' TERM INT
    while :; do
        keep || echo "keep-login.sh: the login in $folder stays as it is" >&2
        sleep "${EVERY:-60}" &
        wait $!
    done
}

# Writes the credentials if they have changed since this loop wrote them, if they are missing, or if the
# kubeconfig is another program's: what a newer pod has written stays.
keep() {
    token=$(cat "$account/token") && [ -n "$token" ] && ca=$(cat "$account/ca.crt") || return
    found="$token $ca"
    if [ "$found" = "$kept" ] && [ -s "$folder/token" ] && grep -qs 'tokenFile: token' "$folder/$file"; then
        return
    fi
    mkdir -p "$folder" || return
    printf '%s\n' "$ca" | put ca.crt && printf %s "$token" | put token && kubeconfig | put "$file" || return
    kept=$found
    echo "keep-login.sh: wrote the login in $folder"
}

# Puts stdin into a file of the folder.
put() {
    cat >"$folder/.$1.new" && [ -s "$folder/.$1.new" ] && mv -f "$folder/.$1.new" "$folder/$1"
}

# Its paths are relative to its folder.
kubeconfig() {
    server=${API_SERVER:-$(server)}
    cat <<END
apiVersion: v1
kind: Config
current-context: ipam-delegated
contexts:
- name: ipam-delegated
  context: {cluster: here, user: ipam-delegated${NAMESPACE:+, namespace: $NAMESPACE}}
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
