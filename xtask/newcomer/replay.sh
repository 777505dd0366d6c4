# Captures packets and replays them, by docs/record.md and docs/send.md.
nocopy=/root/nocopy/target/release/nocopy

# Interfaces without IPv6 have no packets of their own.
off=/proc/sys/net/ipv6/conf/default/disable_ipv6
if test -e $off; then echo 1 > $off; fi
ip link add left type veth peer name right
ip link set left up
ip link set right up

# Waits up to a minute: a recording makes its file once it captures.
captures() {
    for _ in $(seq 600); do
        if test -e "$1"; then return; fi
        sleep 0.1
    done
    echo "$1: no recording began"
    exit 1
}

$nocopy record right -o /tmp/first.pcapng --count 1000 & first=$!
captures /tmp/first.pcapng
$nocopy send left --count 1000 --size 200 --rate 10kpps
wait $first

$nocopy record right -o /tmp/again.pcapng --count 1000 & again=$!
$nocopy record right -o /tmp/again.bin --format payload --count 1000 & payload=$!
captures /tmp/again.pcapng
captures /tmp/again.bin
$nocopy send left --replay /tmp/first.pcapng --speed 2x
wait $again
wait $payload

# The payload of each packet begins with its number, in 8 bytes.
test "$(stat -c %s /tmp/again.bin)" = 158000
test "$(od -A n -t u1 -j $((158 * 999)) -N 8 /tmp/again.bin | tr -s ' ')" = ' 0 0 0 0 0 0 3 231'
