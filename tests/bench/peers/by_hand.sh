#!/bin/sh
# What operators write around a tender: a tap on a bridge, a published UDP port, and the tender. Each task is named after
# its host port.
#
#   by_hand.sh setup             the bridge and the rules that all tasks share
#   by_hand.sh up|down PORT      a task's tap and published port
#   by_hand.sh start|stop PORT   a task in the background
#   by_hand.sh run               a task in the foreground, with the port that Nomad has allocated for the label dns
set -eu
verb=$1
port=${2:-${NOMAD_HOST_PORT_dns:-0}}
tap=hand$port
address=10.77.$((port >> 8)).$((port & 255))

up() {
    ip tuntap add "$tap" mode tap
    ip link set "$tap" master hand0 up
    nft add element ip hand published "{ udp . $port : $address . 7 }"
}

down() {
    nft delete element ip hand published "{ udp . $port : $address . 7 }"
    ip link delete "$tap"
}

tender() {
    exec /usr/local/bin/solo5-spt "--net:service=$tap" --mem=24 -- /srv/guests/net.spt \
        "--ipv4=$address/16" --ipv4-gateway=10.77.0.1
}

case $verb in
setup)
    ip link add hand0 type bridge
    ip address add 10.77.0.1/16 dev hand0
    ip link set hand0 up
    nft --file - <<END
table ip hand {
    map published { type inet_proto . inet_service : ipv4_addr . inet_service; }
    chain prerouting {
        type nat hook prerouting priority dstnat
        ip daddr 192.0.2.1 dnat ip addr . port to meta l4proto . th dport map @published
    }
    chain output {
        type nat hook output priority dstnat
        ip daddr 192.0.2.1 dnat ip addr . port to meta l4proto . th dport map @published
    }
}
END
    ;;
up | down) "$verb" ;;
start)
    up
    (tender) < /dev/null > "/run/$tap.log" 2>&1 &
    echo $! > "/run/$tap.pid"
    ;;
stop)
    read -r pid < "/run/$tap.pid"
    kill "$pid"
    while kill -0 "$pid" 2> /dev/null; do sleep 0.01; done
    down
    rm "/run/$tap.pid" "/run/$tap.log"
    ;;
run)
    up
    trap 'kill "$child"; wait "$child" || true; down; exit 0' INT TERM
    (tender) &
    child=$!
    wait "$child"
    down
    ;;
esac
