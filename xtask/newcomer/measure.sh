# Measures this machine, as the README says.
cd /root/nocopy
cargo run --release -- bench > /tmp/table
cat /tmp/table
# Every row ends with what was copied.
test "$(grep -c ' \(copied\|unknown\|zero-copy\)$' /tmp/table)" -ge 17
