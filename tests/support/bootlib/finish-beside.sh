# Runs inside the tree of `--with beside` after finish-machine.sh: a test starts what it is about.
for unit in docker.service docker.socket containerd.service podman.service podman.socket podman-restart.service \
    podman-auto-update.service podman-auto-update.timer podman-clean-transient.service firewalld.service ufw.service NetworkManager.service \
    NetworkManager-dispatcher.service NetworkManager-wait-online.service virtnetworkd.service virtnetworkd.socket \
    virtnetworkd-ro.socket virtnetworkd-admin.socket libvirtd.service libvirtd.socket libvirtd-ro.socket \
    libvirtd-admin.socket virtlogd.service virtlogd.socket virtlogd-admin.socket virtlockd.socket libvirt-guests.service wpa_supplicant.service; do
    systemctl disable "$unit" 2> /dev/null || true
done
systemctl mask NetworkManager-wait-online.service
