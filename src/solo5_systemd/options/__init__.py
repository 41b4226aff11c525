"""The syntax of a task's options, on the command line of `solo5ctl run` and in declarations."""
