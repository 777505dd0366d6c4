# Both ends count the same, and each payload begins with its number.
grep -q '"final": true' received.json
test "$(($(stat -c %s payloads.bin) % 958))" = 0
test "$(od -A n -t u1 -N 8 payloads.bin | tr -d ' ')" = 00000000
