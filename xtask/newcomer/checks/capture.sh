# Every packet is in the file or in a count.
grep -q '"missing": *0[,}]' million.json
grep -q '"received": *[1-9]' million.json
test "$(stat -c %s million.pcapng)" -gt 100000
test -s numbered.bin
test "$(($(stat -c %s numbered.bin) % 158))" = 0 # payloads of packets of 200 bytes
