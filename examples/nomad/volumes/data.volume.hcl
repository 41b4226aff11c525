# A persistent disk: `nomad volume create data.volume.hcl` makes a directory with the file disk.img on one node, which
# examples/nomad/volume.nomad.hcl uses. The agent needs host_volume_plugin_dir = "/usr/lib/nomad/host_volume_plugins".
name         = "data"
type         = "host"
plugin_id    = "solo5-disk"
capacity_max = "64MiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
