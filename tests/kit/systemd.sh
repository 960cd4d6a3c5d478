#!/bin/bash
# Boots a real systemd as PID 1 of new namespaces, on an overlay of this machine's root of which nothing is kept.
#
#   systemd.sh CGROUP FOLDER PYTHON PACKAGES SOURCE UNIT
#
# CGROUP: an empty cgroup (version 2) that becomes the new system's root; whoever kills it ends everything. FOLDER: an
# empty one to mount on. PYTHON, PACKAGES, SOURCE: an interpreter in the bin of its prefix, a folder with what deadsure
# needs, and its repository; all seen under /opt/deadsure. UNIT: the template to install. The network is shared.
set -euo pipefail
self=$(readlink -f "$0")

case ${STAGE:-outer} in
outer) # PID 1 dies when this process does, and so does everybody in its namespace
  export STAGE=first
  exec unshare --mount --pid --uts --ipc --fork --kill-child=KILL --propagation private "$self" "$@"
  ;;
first) # this process alone moves, else the new root would have a process in it and could have no controllers
  echo 0 > "$1/cgroup.procs"
  export STAGE=second
  exec unshare --cgroup "$self" "$@"
  ;;
esac

folder=$2 python=$3 packages=$4 source=$5 unit=$6
unset STAGE
mount -t tmpfs -o mode=755 tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
root=$folder/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$root"

# The kernel's settings are this machine's, so they can only be read.
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

# None of this machine's own services: no unit of its administrator, no generator, no disk.
: > "$root/etc/machine-id"
: > "$root/etc/fstab"
mount -t tmpfs -o mode=755 tmpfs "$root/etc/systemd/system"
for generators in /usr/lib/systemd/system-generators /etc/systemd/system-generators; do
  [ ! -d "$root$generators" ] || mount -t tmpfs -o mode=755 tmpfs "$root$generators"
done
for name in systemd-udevd.service systemd-udev-trigger.service systemd-journald-audit.socket \
  systemd-modules-load.service systemd-remount-fs.service systemd-random-seed.service systemd-sysctl.service \
  systemd-boot-random-seed.service systemd-timesyncd.service systemd-networkd.socket systemd-hwdb-update.service \
  modprobe@.service \
  sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount sys-kernel-config.mount \
  dev-hugepages.mount dev-mqueue.mount proc-sys-fs-binfmt_misc.automount; do
  ln -s /dev/null "$root/etc/systemd/system/$name"
done
cat > "$root/etc/systemd/system/booted.target" <<'TARGET'
[Unit]
Description=Nothing but a basic system
Requires=basic.target
After=basic.target
AllowIsolate=yes
TARGET

# deadsure as docs/deployment.md installs it, except that interpreter and packages are lent and not installed.
mount -t tmpfs -o mode=755 tmpfs "$root/opt"
mkdir -p "$root/opt/deadsure/bin" "$root/opt/deadsure/python" "$root/opt/deadsure/packages" \
  "$root/opt/deadsure/source" "$root/etc/deadsure" "$root/etc/credstore"
chmod 700 "$root/etc/credstore"
mount --bind "$(dirname "$(dirname "$python")")" "$root/opt/deadsure/python"
mount --bind "$packages" "$root/opt/deadsure/packages"
mount --bind "$source" "$root/opt/deadsure/source"
cat > "$root/opt/deadsure/bin/deadsure" <<PROGRAM
#!/bin/sh
export LD_LIBRARY_PATH=/opt/deadsure/python/lib PYTHONPATH=/opt/deadsure/source/.ci/path:/opt/deadsure/packages
exec /opt/deadsure/python/bin/$(basename "$python") -m deadsure "\$@"
PROGRAM
chmod 755 "$root/opt/deadsure/bin/deadsure"
cp "$unit" "$root/etc/systemd/system/"

cd "$root"
mkdir .old
pivot_root . .old
umount -l /.old
mount --make-rshared / # else the folder of the credentials stays empty
cd /
exec env -i container=test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --unit=booted.target --log-target=journal --show-status=no < /dev/null
