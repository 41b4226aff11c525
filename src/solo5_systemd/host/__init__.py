"""Requirements on the host: facts for `solo5ctl doctor`, tenders, device nodes."""
