# The archive, unpacked at /files, on a Debian: the static command runs unchanged, and so does what it preloads.
PATH=/files/bin:$PATH
nocopy --version
nocopy doctor nc0 > /dev/null || [ $? = 1 ] # gates that are closed
nocopy bench --rounds 1 --window 50ms || [ $? = 1 ] # 1: a figure is zero, as when the machine is busy
# A filter is compiled by tcpdump; a filter that is wrong is refused in tcpdump's words.
nocopy sniff lo --count 3 udp port 9
nocopy sniff lo --count 1 udp prot 9 2> /tmp/refused && exit 1
grep -q "cannot be compiled; can't parse filter expression: syntax error" /tmp/refused
nocopy record lo --count 3 -o /tmp/recorded.pcapng udp port 9
[ "$(tcpdump -n -r /tmp/recorded.pcapng | wc -l)" = 3 ]
# Without tcpdump the error names its package and the other way.
mv /usr/bin/tcpdump /tmp/tcpdump
nocopy sniff lo --count 1 udp 2> /tmp/refused && exit 1
grep -q "'apt install tcpdump'.*--bytecode" /tmp/refused
/tmp/tcpdump -ddd -y EN10MB udp port 9 > /tmp/bytecode
nocopy sniff lo --count 3 --bytecode /tmp/bytecode
mv /tmp/tcpdump /usr/bin/tcpdump
# What is preloaded is for glibc, as this Debian is.
nocopy run --report -- tcpdump -n -i lo -c 3 udp port 9 2> /tmp/report
cat /tmp/report
grep -q " nocopy   passive " /tmp/report
cat > /tmp/send.pl << 'END'
use Socket;
socket(my $socket, PF_INET, SOCK_DGRAM, 0);
my $to = sockaddr_in(9999, inet_aton("127.0.0.1"));
send($socket, "x" x 1000, 0, $to) for 1 .. 2000;
END
nocopy run --batch-udp --report -- perl /tmp/send.pl 2> /tmp/report
cat /tmp/report
grep -q "bursts ended by" /tmp/report
# A statically linked program is not preloaded into, in words.
nocopy run -- nocopy --version 2> /tmp/refused
grep -q "nothing can be preloaded into it; the program is statically linked" /tmp/refused
