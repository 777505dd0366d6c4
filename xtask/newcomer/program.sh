# Builds three programs that were written from the documentation of the library alone, in a package that depends on the library as the
# documentation says, and lets them talk to each other.
cd /root
cargo new --quiet --vcs none first
cd first
cp /root/Cargo.lock . # without a network, only versions that were downloaded can be used
cargo add --path ../nocopy/crates/nocopy
mv /root/programs src/bin
cargo build
ip link set lo up

# Waits up to a minute: each program says when it has begun.
says() {
    for _ in $(seq 600); do
        if grep -q "$2" "$1"; then return; fi
        sleep 0.1
    done
    echo "$1: no '$2'"
    exit 1
}

target/debug/capture lo 'datagram 99' 2 > /tmp/capture & capture=$!
says /tmp/capture capturing
target/debug/echo 127.0.0.1:7000 100 > /tmp/echo & echo=$!
says /tmp/echo echoing
target/debug/sender 127.0.0.1:7000 100 > /tmp/sender
wait $echo
wait $capture
cat /tmp/capture /tmp/echo
tail -n 1 /tmp/sender

# There and back: each packet has 14 + 20 + 8 bytes of headers.
grep -q '^sent 100, answered 100, ' /tmp/sender
test "$(grep -c '^53 bytes at ' /tmp/capture)" = 2
