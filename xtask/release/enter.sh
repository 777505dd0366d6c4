# enter.sh ROOT FILES COMMAND…: runs a command whose root directory is ROOT, with FILES (or nothing) at /files
#
# Started in mount, network and process namespaces of its own: no mount, interface or process is left behind. What is written goes to memory, so ROOT stays as it
# is. Beside lo there is a veth pair, nc0 and nc1, and somebody sends datagrams to port 9 of lo.
root=$1
files=$2
shift 2
ip link set lo up
ip link add nc0 type veth peer name nc1
ip link set nc0 up
ip link set nc1 up
bash -c 'while sleep 0.01; do echo > /dev/udp/127.0.0.1/9; done' 2> /dev/null &
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" overlay /mnt/root
cd /mnt/root
mkdir -p proc sys
mount -t proc proc proc
mount -t sysfs sysfs sys
if [ -n "$files" ]; then
    mkdir files
    mount -o bind,ro "$files" files
fi
# The programs of this machine, for one that must run in ROOT and is not there.
if [ -n "${HOST_PROGRAMS:-}" ]; then
    mkdir .host
    mount -o bind,ro / .host
fi
env -i HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot . "$@"
