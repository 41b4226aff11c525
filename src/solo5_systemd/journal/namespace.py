"""Where the journald of a journal namespace is reached (LogNamespace= of systemd.exec(5)); empty: the host's."""


def socket_of(path: str, namespace: str) -> str:
    """Return the path of a namespace's socket, given that of the host's journald."""
    return path.replace("/systemd/journal/", f"/systemd/journal.{namespace}/", 1) if namespace else path
