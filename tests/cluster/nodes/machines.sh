#!/usr/bin/env bash
# Machines made of namespaces: an operator's, and for each ADDRESS one with an sshd that takes the
# operator's key. Say `unshare -n -u -m -p -f --kill-child --mount-proc bash machines.sh TREE VENV
# ADDRESS...`: it says `ready` and stays, and all that runs on any of them ends when it does.
# A machine has its own network, processes, host name, shared memory, /tmp and home, which is
# /tmp/home; TREE and VENV are seen by all, as is the rest of the disk.
set -euo pipefail

own_places() { # HOSTNAME: what a machine has for itself
    hostname "$1"
    ip link set lo up
    mount -t tmpfs machine /tmp
    # The tree may itself be in what was just covered.
    mkdir -p "$tree" /tmp/home/.ssh
    mount --bind /run/tree "$tree"
    mount -t tmpfs machine /dev/shm
    sed 's|^root:.*|root:x:0:0:root:/tmp/home:/bin/bash|' /etc/passwd > /tmp/passwd
    mount --bind /tmp/passwd /etc/passwd
    touch /tmp/home/.bashrc
    export HOME=/tmp/home
}

if [[ $1 == node ]]; then
    tree=$2 venv=$3 address=$4
    own_places "node-${address##*.}"
    ip address add "$address/24" dev wire
    ip link set wire up
    ip route add default via 192.0.2.1
    cp /run/operator.pub ~/.ssh/authorized_keys
    ln -s "$venv" ~/blockyard-env
    ssh-keygen -q -t ed25519 -N '' -f /tmp/host_key
    # Not this process itself, which has to clear away what others leave to it when they end.
    /usr/sbin/sshd -D -f /dev/null -h /tmp/host_key -o PidFile=none -o StrictModes=no &
    wait
fi

tree=$1 venv=$2
shift 2
mount -t tmpfs machines /run
mkdir -p /run/sshd /run/tree
mount --bind "$tree" /run/tree
own_places operator
ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519
cp ~/.ssh/id_ed25519.pub /run/operator.pub
ip link add bridge type bridge
ip address add 192.0.2.1/24 dev bridge
ip link set bridge up
for address in "$@"; do
    name=node-${address##*.}
    ip netns add "$name"
    ip link add "$name" type veth peer name wire netns "$name"
    ip link set "$name" master bridge up
    ip netns exec "$name" unshare -u -m -p -f --kill-child --mount-proc \
        bash "${BASH_SOURCE[0]}" node "$tree" "$venv" "$address" &
done
for address in "$@"; do
    until (: > "/dev/tcp/$address/22") 2> /dev/null; do sleep 0.05; done
done
echo ready
wait
