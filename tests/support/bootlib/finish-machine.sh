# Runs inside the machine tree once all packages are there.
echo machine > /etc/hostname
echo "127.0.0.1 localhost machine" > /etc/hosts
rm -f /etc/machine-id
touch /etc/machine-id
passwd --quiet --delete root
systemctl set-default multi-user.target
# Nothing may happen in a test machine that a test did not ask for.
systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-tmpfiles-clean.timer getty.target console-getty.service serial-getty@ttyS0.service \
    systemd-networkd-wait-online.service systemd-binfmt.service haproxy.service ssh.service ssh.socket
# Each daemon-reload executes all generators. These of systemd's have nothing to do here; tests write /etc/fstab.
mkdir -p /etc/systemd/system-generators
for name in debug getty gpt-auto hibernate-resume rc-local run ssh system-update sysv tpm2; do
    ln -s /dev/null "/etc/systemd/system-generators/systemd-$name-generator"
done
version=$(ls /usr/lib/modules)
# Where modules are compressed (Debian 12 does not): emulated processors take long over xz, and the disk is large.
find "/usr/lib/modules/$version" -name "*.ko.xz" -exec xz --decompress {} +
depmod "$version"
# The kernel and just enough of a first file system to reach the disk: one module, then the real root.
early=$(mktemp --directory)
mkdir "$early/root" "$early/dev"
cp /usr/bin/busybox "$early/busybox"
cp "/usr/lib/modules/$version/kernel/drivers/block/virtio_blk.ko" "$early"
cat > "$early/init" <<END
#!/busybox sh
/busybox mount -t devtmpfs dev /dev
/busybox insmod /virtio_blk.ko
/busybox mount -t ext4 /dev/vda /root
/busybox mount -o move /dev /root/dev
exec /busybox switch_root /root /sbin/init
END
chmod 755 "$early/init"
(cd "$early" && find . | busybox cpio -o -H newc) > /boot/early.cpio
rm -r "$early"
ln -s "vmlinuz-$version" /boot/kernel
# Work that systemd would do at the first boot, done here once.
systemd-hwdb update --usr 2> /dev/null || true
journalctl --update-catalog
ldconfig
touch /etc/.updated /var/.updated
