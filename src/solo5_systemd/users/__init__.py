"""The users of tasks: allocation from the operator's range, user records, given disks."""
