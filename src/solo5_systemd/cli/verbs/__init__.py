"""The verbs of solo5ctl, one file each."""
