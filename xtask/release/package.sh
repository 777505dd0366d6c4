# A repository of Debian packages at /files, with a version and a lower one, on a Debian: installed, used, upgraded, purged.
# What dpkg and apt note about all packages is not compared, and neither are directories of other packages that are empty.
list() {
    find / -xdev \( -path /proc -o -path /sys -o -path /files -o -path /tmp -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \
        -o -path /var/log \) -prune -o -print | sort
}
apt() { apt-get -qq -o Dpkg::Use-Pty=0 "$@"; }
rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:/files ./' > /etc/apt/sources.list.d/nocopy.list
list > /tmp/before
apt update
lower=$(apt-cache madison nocopy | tail -n 1 | cut -d '|' -f 2 | tr -d ' ')
apt install nocopy="$lower"
[ "$(dpkg-query -W -f '${Version}' nocopy)" = "$lower" ]
apt install nocopy
[ "$(dpkg-query -W -f '${Version}' nocopy)" != "$lower" ]
apt-cache show nocopy | grep -q '^Recommends: tcpdump$'
for file in share/man/man1/nocopy.1.gz share/bash-completion/completions/nocopy share/zsh/vendor-completions/_nocopy share/fish/vendor_completions.d/nocopy.fish \
    lib/nocopy/libnocopy_pcap.so lib/nocopy/libnocopy_sockets.so share/doc/nocopy/README.md; do
    [ -s "/usr/$file" ]
done
# Installing starts and enables nothing.
[ -z "$(find /etc/systemd -name 'nocopy*')" ]
nocopy --version
nocopy doctor nc0 > /dev/null || [ $? = 1 ] # gates that are closed
nocopy bench --rounds 1 --window 50ms || [ $? = 1 ] # 1: a figure is zero, as when the machine is busy
nocopy sniff lo --count 3 udp port 9
nocopy record lo --count 3 -o /tmp/recorded.pcapng
nocopy run --report -- tcpdump -n -i lo -c 3 udp port 9
apt purge nocopy
list > /tmp/after
diff /tmp/before /tmp/after
