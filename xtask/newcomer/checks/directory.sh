# The copy is whole, and the server knows its client.
cmp runs/7/log copy/log
grep -q '192.0.2.2' served.json
