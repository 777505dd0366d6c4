# Runs one script of a newcomer on a bare Debian: enter.sh DEBIAN CARGO_HOME RUSTUP_HOME SCRIPT
#
# Started in mount, network and process namespaces of its own, so that no mount, interface or process is left behind. Rust is that of this
# machine, and so are the crates that were downloaded: there is no network.
debian=$1
# A mount of its own, which 'ip netns' needs its root to be.
mount -o bind "$debian" "$debian"
mount -t proc proc "$debian/proc"
mount -t sysfs sysfs "$debian/sys"
mount --rbind /dev "$debian/dev"
mkdir -p "$debian/root/.cargo" "$debian/root/.rustup"
mount -o bind,ro "$2" "$debian/root/.cargo"
mount -o bind,ro "$3" "$debian/root/.rustup"
exec chroot "$debian" /usr/bin/env -i HOME=/root CARGO_NET_OFFLINE=true \
    PATH=/root/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -eux "/root/$4"
